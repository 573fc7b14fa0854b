"""Translate source texts to target texts with a trained model and its tokenizer.

Only the jax side has runs; the torch twin has none.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxformer.checkpoints.trained import load_trained
from jaxformer.config.settings import BeamConfig, SamplingConfig
from jaxformer.data.tokenizers import Frame, Tokenizer
from jaxformer.decoding import translate, translate_beam
from jaxformer.decoding.prepare import bucket
from jaxformer.errors import InputError
from jaxformer.models import EncoderDecoder
from jaxformer.runtime.jit import jit

ROWS = 64
"""Maximum number of sources in a batch."""
SHORTEST = 64
"""Minimum number of tokens that every target may have."""
TooLong = Literal["cut", "refuse"]


class Translation(NamedTuple):
    """Target text, and the score that the search gave it."""

    text: str
    score: float
    """log-probability / length^length_penalty."""


@dataclass(frozen=True)
class Translator:
    """Model, with the tokenizer that it was trained with."""

    model: EncoderDecoder
    tokenizer: Tokenizer
    too_long: TooLong = "cut"
    """Treatment of a source longer than the model's context: cut it, or refuse it."""
    given_frame: Frame | None = None
    """Start, end and padding ids of targets, for a tokenizer that frames sources itself. None: the tokenizer frames both."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Fields of SamplingConfig and BeamConfig that apply to every search."""

    def __post_init__(self) -> None:
        if self.given_frame is None and self.tokenizer.vocab_size != self.model.config.vocab_size:
            raise InputError(
                f"the tokenizer has {self.tokenizer.vocab_size} tokens, the model {self.model.config.vocab_size}: it is not "
                f"the one that this model was trained with"
            )

    @property
    def frame(self) -> Frame:
        """Start, end and padding ids of targets."""
        return self.tokenizer.frame if self.given_frame is None else self.given_frame

    def greedy(self, texts: Sequence[str]) -> list[str]:
        """Translate greedily: each token is the likeliest at its place. An empty text gives an empty target."""
        return self._in_batches(texts, self._greedy, "")

    def beam(self, texts: Sequence[str], beam: BeamConfig = BeamConfig()) -> list[list[Translation]]:
        """Return the `n_best` targets of each text that beam search finds, best first; an empty text has empty targets."""
        return self._in_batches(texts, lambda ids, valid: self._beam(ids, valid, beam), [Translation("", 0.0)] * beam.n_best)

    def alignment(self, text: str, target: str) -> tuple[np.ndarray, list[str], list[str]]:
        """Return cross-attention weights `T S` of the last layer, averaged over heads, and the tokens of source and target.

        The end tokens are included.
        """
        source, read, sources, targets = self.aligned(text, target)
        maps = jit(EncoderDecoder.attention_weights)(self.model, source[None], read[None])
        return np.asarray(maps.cross[-1, 0]).mean(0), sources, targets

    def aligned(self, text: str, target: str) -> tuple[np.ndarray, np.ndarray, list[str], list[str]]:
        """Return the ids of a source and those that the decoder reads, and the tokens of the source and the target, each with
        its end."""
        (source,) = self._encode([text])
        ids = self.tokenizer.encode(target)[: self.model.config.context - 1]
        read = np.concatenate([[self.frame.start], ids]).astype(np.int32)
        end = self.tokenizer.backend.id_to_token(self.frame.end) or ""
        return source, read, [*self._pieces(source[:-1]), end], [*self._pieces(ids), end]

    def _pieces(self, ids: np.ndarray) -> list[str]:
        return [self.tokenizer.decode([int(i)]) for i in ids]

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode sources, each with the end token appended; sources that are too long are cut or refused."""
        most, framed = self.model.config.source.context - 1, self.given_frame is not None
        rows = self.tokenizer.encode_all(texts, special=framed)
        ends = [row[-1] if framed and len(row) else self.frame.end for row in rows]
        rows = [row[:-1] for row in rows] if framed else rows
        for text, row in zip(texts, rows, strict=True):
            if len(row) > most:
                if self.too_long == "refuse":
                    raise InputError(f"{text[:40]!r}... has {len(row)} tokens; this model reads at most {most}")
                warnings.warn(f"sources of more than {most} tokens are cut there", stacklevel=1)
        return [np.append(row[:most], end).astype(np.int32) for row, end in zip(rows, ends, strict=True)]

    def _in_batches(self, texts: Sequence[str], decode: Any, empty: Any) -> list[Any]:
        """Apply `decode` to batches of sources with similar lengths; return the results in the order of `texts`.

        The result of a text does not depend on the other texts.
        """
        rows = self._encode(texts)
        filled = [i for i, text in enumerate(texts) if text.strip()]
        results: list[Any] = [empty] * len(texts)
        for chunk in _chunks({i: bucket(len(rows[i])) for i in filled}):
            ids, valid = _padded([rows[i] for i in chunk], self.frame.pad)
            for i, result in zip(chunk, decode(ids, valid), strict=False):
                results[i] = result
        return results

    def _greedy(self, ids: np.ndarray, valid: np.ndarray) -> list[str]:
        start, end, pad = self.frame
        sampling, room = SamplingConfig(temperature=0, **self.rules), self._room(ids)
        return [
            self._text(row) for row in translate(self.model, ids, room, sampling, start=start, eos=end, pad=pad, valid=valid)
        ]

    def _beam(self, ids: np.ndarray, valid: np.ndarray, beam: BeamConfig) -> list[list[Translation]]:
        start, end, pad = self.frame
        beam = replace(beam, **self.rules)
        found = translate_beam(self.model, ids, self._room(ids), beam, start=start, eos=end, pad=pad, valid=valid)
        return [
            [Translation(self._text(row), float(score)) for row, score in zip(*source, strict=True)]
            for source in zip(found.tokens, found.scores, strict=True)
        ]

    def _room(self, ids: np.ndarray) -> int:
        """Maximum number of target tokens: SHORTEST, or twice the source's padded width, which no other source affects."""
        return min(self.model.config.context, max(SHORTEST, 2 * bucket(ids.shape[1])))

    def _text(self, ids: np.ndarray) -> str:
        """Decode a target up to its end token.

        A run's target is one line, stripped; that of another folder keeps its spaces, as in transformers.
        """
        ends = np.flatnonzero(ids == self.frame.end)
        ids = ids[: ends[0]] if ends.size else ids
        text = self.tokenizer.decode(ids[ids < self.tokenizer.vocab_size])
        return one_line(text).strip() if self.given_frame is None else text


def one_line(text: str) -> str:
    """Replace line ends with spaces."""
    return text.replace("\n", " ")


def load_translator(path: Path, too_long: TooLong = "cut") -> Translator:
    """Load the translator of a run folder; InputError if the run's model does not translate texts."""
    model, words = load_trained(path)
    if not isinstance(model, EncoderDecoder) or not isinstance(words, Tokenizer):
        raise InputError(f"{path} holds a model that does not translate texts; use jaxformer generate")
    return Translator(model, words, too_long)


def _chunks(widths: Mapping[int, int]) -> Iterator[list[int]]:
    """Yield batches of indices of sources: equal widths, at most ROWS a batch."""
    for width in sorted(set(widths.values())):
        alike = [i for i in widths if widths[i] == width]
        yield from (alike[first : first + ROWS] for first in range(0, len(alike), ROWS))


def _padded(rows: list[np.ndarray], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows to one array, and repeat the last row up to a power of two of rows: fewer shapes to compile."""
    rows = rows + [rows[-1]] * (2 ** (len(rows) - 1).bit_length() - len(rows))
    lengths = np.array([len(row) for row in rows])
    valid = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(valid.shape, pad, np.int32)
    ids[valid] = np.concatenate(rows)
    return ids, valid
