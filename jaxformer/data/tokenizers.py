"""Text <-> token ids: characters, byte-level BPE, and BERT's WordPiece, on the `tokenizers` library.

tokenizer = Tokenizer.train_bpe(texts, 8000)       # or Tokenizer.wordpiece(Path("vocab.txt")), Tokenizer.characters(text)
ids, valid, types = tokenizer.batch(texts, longest=128)
text = tokenizer.decode(ids[0])
tokenizer.save(Path("tokenizer.json"))             # transformers.PreTrainedTokenizerFast(tokenizer_file=...) reads it
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Int32

from jaxformer.data.backends import AGAIN, NO_FILE, check_backend, foreign, read_backend, read_bounded
from jaxformer.data.token_batch import Batch, pad_rows, truncate
from jaxformer.errors import InputError
from jaxformer.io.atomic import written_whole
from jaxformer.runtime.packages import extra_package
from jaxformer.validation.fields import check_flag, check_kind, check_path, check_size
from jaxformer.validation.inputs import check_several, check_text

with extra_package():
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

BPE_SPECIAL = ("<pad>", "<s>", "</s>")
"""Tokens of ids 0 to 2; the 256 bytes come after them, then the merges."""
WORDPIECE_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
"""Lines that a vocab.txt must hold; [MASK] is a special token too if it is there."""

LARGEST_VOCABULARY = 2**24
"""Largest vocabulary to train: the library allocates memory for as many pairs at once."""
AT_ONCE = 2**20
"""Number of characters to encode at once if each is a token: the library takes 100 bytes and more for each."""
OTHER = "give others, or a tokenizer that can"
"""Remedy in the message when a tokenizer fails."""


class Frame(NamedTuple):
    """Ids of the tokens around a text."""

    start: int
    end: int
    pad: int


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to ids and ids to text, with the same interface for every kind of tokenizer.

    Special tokens spelled out in a text are text, and never get the special ids; only WordPiece reads `[MASK]` and the like as
    special tokens, as BERT's tokenizer does. A given backend is modified: its own truncation and padding are switched off.
    """

    backend: tokenizers.Tokenizer
    name: str = "the tokenizer"
    """Origin of the tokenizer, for messages."""

    def __post_init__(self) -> None:
        check_kind("backend", self.backend, tokenizers.Tokenizer, "a tokenizers.Tokenizer, or take Tokenizer.load(path)")
        check_backend(self.backend)
        self.backend.encode_special_tokens = not isinstance(self.backend.model, models.WordPiece)

    @classmethod
    def characters(cls, text: str) -> "Tokenizer":
        """Build a tokenizer with one id per character: the distinct ones of a text, sorted. No special tokens, no padding
        token.
        """
        check_text(text, name="text")
        if not text:
            raise InputError("text is empty; give one with every character that is to have an id")
        backend = tokenizers.Tokenizer(models.BPE({character: i for i, character in enumerate(sorted(set(text)))}, []))
        backend.decoder = decoders.Fuse()
        backend.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
        return cls(backend)

    @classmethod
    def train_bpe(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Train byte-pair encoding of UTF-8 bytes (Radford et al. 2019): every text has ids, which decode to exactly the text.

        `<pad>`, `<s>` and `</s>` are ids 0 to 2, then come the 256 bytes, then the most frequent pairs of the texts. The
        vocabulary is smaller than `vocab_size` if the texts have no more pairs to merge. The same texts, in whatever order,
        give the same tokenizer.
        """
        check_size("vocab_size", vocab_size, least=len(BPE_SPECIAL) + 256, most=LARGEST_VOCABULARY)
        check_several(texts, name="texts")
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(BPE_SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator(_checked(texts), trainer)
        return cls(_framed(backend, "<s>", "</s>"))

    @classmethod
    def wordpiece(
        cls, path: Path | str, *, lowercase: bool = True, strip_accents: bool | None = None, chinese: bool = True
    ) -> "Tokenizer":
        """Build BERT's WordPiece (Devlin et al. 2019) from a `vocab.txt`: a token per line, its id the number of lines before
        it.

        `lowercase` is for uncased models. Accents are removed if letters are lowered, unless `strip_accents` says otherwise.
        `chinese` makes every Chinese character a word. A word of more than 100 characters, or one that no pieces make up, is
        [UNK].
        """
        check_flag("lowercase", lowercase)
        check_flag("chinese", chinese)
        if strip_accents is not None:
            check_flag("strip_accents", strip_accents)
        vocabulary = _read_vocabulary(path)
        backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##")
        backend.add_special_tokens([token for token in (*WORDPIECE_SPECIAL, "[MASK]") if token in vocabulary])
        return cls(_framed(backend, "[CLS]", "[SEP]"))

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Load a tokenizer.json that `save` or transformers wrote; InputError if the file is not one."""
        backend = read_backend(path)
        try:
            tokenizer = cls(backend, str(path))
        except InputError as error:
            raise InputError(f"{path}: {error}; write the file again with save") from None
        with foreign(f"{path} {NO_FILE}", AGAIN):
            backend.encode("\N{SNOWMAN}")  # a tokenizer without its token for unknown words fails here
        return tokenizer

    def save(self, path: Path | str) -> None:
        """Write a tokenizer.json by an atomic write; the same tokenizer gives the same bytes."""
        path = check_path("path", path)
        try:
            with written_whole(path) as unfinished:
                unfinished.write_text(self._json(), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror}; name another file") from None

    @property
    def sha256(self) -> str:
        """Checksum of what `save` writes."""
        return hashlib.sha256(self._json().encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Number V of ids."""
        return self.backend.get_vocab_size()

    @property
    def pad(self) -> int | None:
        """Id of padding; None without such a token."""
        return self._id("[PAD]", "<pad>")

    @property
    def start(self) -> int | None:
        """Id before a text; None without such a token."""
        return self._id("[CLS]", "<s>")

    @property
    def end(self) -> int | None:
        """Id after a text; None without such a token."""
        return self._id("[SEP]", "</s>")

    @property
    def frame(self) -> Frame:
        """Ids of start, end and padding, for sequence to sequence; InputError if one of them is missing."""
        start, end, pad = self.start, self.end, self.pad
        if start is None or end is None or pad is None:
            raise InputError("the tokenizer has no tokens for start, end and padding; sequence to sequence needs all three")
        return Frame(start, end, pad)

    @cached_property
    def alphabet(self) -> str | None:
        """Characters that have an id, in the order of ids; None if tokens are more than characters."""
        vocabulary = self.backend.get_vocab()
        plain = isinstance(self.backend.model, models.BPE) and self.backend.pre_tokenizer is None
        if not plain or any(len(token) > 1 for token in vocabulary):
            return None
        return "".join(sorted(vocabulary, key=vocabulary.__getitem__))

    @property
    def opening(self) -> str:
        """Text that precedes a text without a start token: a line break, or the first character if there is none."""
        return "\n" if self._id("\n") is not None else self.decode([0])

    def encode(self, text: str, *, special: bool = False, name: str = "text") -> Int32[np.ndarray, " T"]:
        """Return the ids of a text; with `special`, between start and end. InputError names the first character without
        an id.
        """
        if special or self.alphabet is None or self.backend.normalizer is not None:
            return np.array(self._encode([text], [name], special)[0].ids, np.int32)
        self._check([text], [name])
        parts = (text[i : i + AT_ONCE] for i in range(0, max(len(text), 1), AT_ONCE))
        return np.concatenate([np.array(self._encode([part], [name], special)[0].ids, np.int32) for part in parts])

    def encode_all(self, texts: Sequence[str], *, special: bool = False) -> list[Int32[np.ndarray, " _"]]:
        """Return the ids of each text, on all cores; on one with TOKENIZERS_PARALLELISM=false in the environment."""
        return [np.array(row.ids, np.int32) for row in self._encode(texts, _names("texts", texts), special)]

    def batch(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, special: bool = True, longest: int | None = None
    ) -> Batch:
        """Return the ids of texts, or of each text and its pair, as rows of at most `longest` tokens.

        A text that is too long loses its end. Of two texts the longer one is truncated until they fit or are equally long; then
        both are, to equal parts. The longer text keeps an odd token (the second, if both are as long).
        """
        names, parts = ("texts",) if pairs is None else ("texts", "pairs"), [texts] if pairs is None else [texts, pairs]
        rows = [self._encode(part, _names(name, part), special=False) for name, part in zip(names, parts, strict=True)]
        if not rows[0]:
            raise InputError("texts holds no text; give at least one")
        if len(rows[0]) != len(rows[-1]):
            raise InputError(f"texts holds {len(rows[0])} texts, pairs {len(rows[-1])}; give a pair to each text")
        if longest is not None:
            truncate(rows, longest, self.backend.num_special_tokens_to_add(pairs is not None) if special else 0)
        seconds = repeat(None) if pairs is None else rows[1]
        with foreign(f"{self.name} cannot frame these texts", OTHER):
            whole = [self.backend.post_process(*both, special) for both in zip(rows[0], seconds, strict=False)]
        return pad_rows(whole, self.pad or 0)

    def decode(self, ids: Int[np.ndarray, " T"] | Sequence[int]) -> str:
        """Return the text of these ids without special tokens: the encoded text, except that WordPiece loses spaces."""
        found = np.asarray(ids)
        if found.size and not np.issubdtype(found.dtype, np.integer):
            raise InputError(f"ids: type {found.dtype}; give integers")
        if found.ndim != 1:
            raise InputError(f"ids: shape {found.shape}; give one row")
        if (bad := np.flatnonzero((found < 0) | (found >= self.vocab_size))).size:
            raise InputError(f"ids[{bad[0]}] = {found[bad[0]]} is out of range; give ids from 0 to {self.vocab_size - 1}")
        with foreign(f"{self.name} cannot write these ids as text", OTHER):
            return self.backend.decode(found.tolist())

    def _json(self) -> str:
        return self.backend.to_str(pretty=True)

    def _id(self, *tokens: str) -> int | None:
        return next((i for token in tokens if (i := self.backend.token_to_id(token)) is not None), None)

    def _encode(self, texts: Sequence[str], names: Sequence[str], special: bool) -> list[tokenizers.Encoding]:
        self._check(texts, names)
        with foreign(f"{self.name} cannot encode {names[0] if len(names) == 1 else 'a text'}", OTHER):
            return self.backend.encode_batch_fast(list(texts), add_special_tokens=special)

    def _check(self, texts: Sequence[str], names: Sequence[str]) -> None:
        """Raise InputError that names the first character without an id."""
        for name, text in zip(names, texts, strict=True):
            check_text(text, name=name)
            if self.alphabet is not None and (unknown := set(text).difference(self.alphabet)):
                place, character = next((i, character) for i, character in enumerate(text) if character in unknown)
                raise InputError(
                    f"{name}: character {character!r} (position {place}) is not in this model's vocabulary of "
                    f"{self.vocab_size} characters, {self.alphabet!r:.100}"
                )


def _framed(backend: tokenizers.Tokenizer, start: str, end: str) -> tokenizers.Tokenizer:
    backend.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {end} $B:1 {end}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (start, end)],
    )
    return backend


def _read_vocabulary(path: Path | str) -> dict[str, int]:
    lines = [line.rstrip() for line in read_bounded(path).removesuffix("\n").split("\n")]
    vocabulary: dict[str, int] = {}
    for i, token in enumerate(lines):
        if vocabulary.setdefault(token, i) != i:
            raise InputError(f"{path}: lines {vocabulary[token] + 1} and {i + 1} are both {token!r:.40}; keep one of them")
    if missing := [token for token in WORDPIECE_SPECIAL if token not in vocabulary]:
        raise InputError(f"{path} is not a WordPiece vocabulary: it has no line {missing[0]}; give BERT's vocab.txt")
    return vocabulary


def _names(name: str, texts: Sequence[str]) -> list[str]:
    check_several(texts, name=name)
    return [f"{name}[{i}]" for i in range(len(texts))]


def _checked(texts: Iterable[str]) -> Iterator[str]:
    some = False
    for i, text in enumerate(texts):
        check_text(text, name=f"texts[{i}]")
        some = some or bool(text)
        yield text
    if not some:
        raise InputError("texts holds no text to learn from; give some")
