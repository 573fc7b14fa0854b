"""Source texts -> target texts, with a trained model and its tokenizer.

Only the JAX side has runs: the twin has none.
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
from jaxformer.runtime.xla_options import jit

ROWS = 64
"""Most sources that are translated at once."""
SHORTEST = 64
"""Tokens that every target may have."""
TooLong = Literal["cut", "refuse"]


class Translation(NamedTuple):
    """A target, and how likely its search found it."""

    text: str
    score: float
    """log-probability / length^length_penalty."""


@dataclass(frozen=True)
class Translator:
    """A model with the tokenizer that it was trained with."""

    model: EncoderDecoder
    tokenizer: Tokenizer
    too_long: TooLong = "cut"
    """What happens to a source that is longer than the model's table of positions."""
    given_frame: Frame | None = None
    """The ids around a target, of a model whose tokenizer frames sources by itself. None: the tokenizer's frame both."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Fields of BeamConfig that every search has."""

    def __post_init__(self) -> None:
        if self.given_frame is None and self.tokenizer.vocab_size != self.model.config.vocab_size:
            raise InputError(
                f"the tokenizer has {self.tokenizer.vocab_size} tokens, the model {self.model.config.vocab_size}: it is not "
                f"the one that this model was trained with"
            )

    @property
    def frame(self) -> Frame:
        """The ids that stand around a target, and that fill it up."""
        return self.tokenizer.frame if self.given_frame is None else self.given_frame

    def greedy(self, texts: Sequence[str]) -> list[str]:
        """The targets that take the likeliest token at each place; an empty text has an empty one."""
        return self._in_batches(texts, self._greedy, "")

    def beam(self, texts: Sequence[str], beam: BeamConfig = BeamConfig()) -> list[list[Translation]]:
        """The `n_best` targets of each text that a beam finds, the best first; an empty text has as many empty ones."""
        return self._in_batches(texts, lambda ids, valid: self._beam(ids, valid, beam), [Translation("", 0.0)] * beam.n_best)

    def alignment(self, text: str, target: str) -> tuple[np.ndarray, list[str], list[str]]:
        """What each token of a target looks at in its source, `T S`: the last layer's cross-attention, averaged over heads;
        and the tokens of both, the ends among them."""
        (source,) = self._encode([text])
        ids = self.tokenizer.encode(target)[: self.model.config.context - 1]
        read = np.concatenate([[self.frame.start], ids]).astype(np.int32)
        maps = jit(EncoderDecoder.attention_weights)(self.model, source[None], read[None])
        weights = np.asarray(maps.cross[-1, 0]).mean(0)
        end = self.tokenizer.backend.id_to_token(self.frame.end) or ""
        return weights, [*self._pieces(source[:-1]), end], [*self._pieces(ids), end]

    def _pieces(self, ids: np.ndarray) -> list[str]:
        return [self.tokenizer.decode([int(i)]) for i in ids]

    def _encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of sources, each with the end behind it; one that is too long is cut, or refused."""
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
        """Whatever `decode` gives for each text, in their order: sources of like lengths go together, and no text changes
        what another gets."""
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
        """The most tokens that a target may have: SHORTEST, or twice the source's width, which no other source decides."""
        return min(self.model.config.context, max(SHORTEST, 2 * bucket(ids.shape[1])))

    def _text(self, ids: np.ndarray) -> str:
        """Target up to its end: of a run on one line, of another folder as transformers decodes it, spaces around it too."""
        ends = np.flatnonzero(ids == self.frame.end)
        ids = ids[: ends[0]] if ends.size else ids
        text = self.tokenizer.decode(ids[ids < self.tokenizer.vocab_size])
        return one_line(text).strip() if self.given_frame is None else text


def one_line(text: str) -> str:
    """Text with a space for every end of a line."""
    return text.replace("\n", " ")


def load_translator(path: Path, too_long: TooLong = "cut") -> Translator:
    """The model and the tokenizer of a run folder; InputError where the run is of another kind."""
    model, words = load_trained(path)
    if not isinstance(model, EncoderDecoder) or not isinstance(words, Tokenizer):
        raise InputError(f"{path} holds a model that does not translate texts; use jaxformer generate")
    return Translator(model, words, too_long)


def _chunks(widths: Mapping[int, int]) -> Iterator[list[int]]:
    """Numbers of sources, those of one width together, at most ROWS of them."""
    for width in sorted(set(widths.values())):
        alike = [i for i in widths if widths[i] == width]
        yield from (alike[first : first + ROWS] for first in range(0, len(alike), ROWS))


def _padded(rows: list[np.ndarray], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as one array, its height a power of two so that few shapes are compiled; the rows more repeat the last one."""
    rows = rows + [rows[-1]] * (2 ** (len(rows) - 1).bit_length() - len(rows))
    lengths = np.array([len(row) for row in rows])
    valid = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(valid.shape, pad, np.int32)
    ids[valid] = np.concatenate(rows)
    return ids, valid
