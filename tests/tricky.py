"""Texts on which WordPiece tokenizers differ, and a small vocabulary that tells them apart."""

import json
import string
from functools import cache
from pathlib import Path

from jaxformer.data.tokenizers import Tokenizer

_FILE = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
"""Words and pieces, and texts by what is tricky about them; what cannot be seen is escaped."""

_REPEATED = (
    *(("a", 99), ("a", 100), ("a", 101), ("a", 300), ("E", 300), ("\u00e9", 100), ("\u00e9", 101), ("\u00df", 100)),
    *(("e\u0301", 60), ("\u0130", 51), ("x\u200b", 51), ("a\x00", 100), ("a\x00", 101), ("\u4e2d", 300)),
    *(("\U0001f600", 101), ("-", 150), ("the ", 200), ("unaffable ", 30)),
)
"""Around the 100 characters that a word may have."""
TRICKY: list[str] = [text for name, texts in _FILE.items() if name != "vocabulary" for text in texts]
TRICKY += [text * n for text, n in _REPEATED] + ["a" * 300 + " the fox", "the " + "b" * 101]
ENGLISH = [
    "the quick brown fox jumps",
    "over the lazy dog",
    "the fox and the dog",
    "<s> <s> </s> <pad> <s>",
    "na\u00efve \u4e2d\u56fd",
]


def write_vocabulary(folder: Path) -> Path:
    """A vocab.txt: special tokens, letters and digits with what continues them (but no ##q), and the words."""
    single = string.ascii_letters + string.digits
    pieces = [f"##{character}" for character in single if character != "q"]
    tokens = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *single, *pieces, *_FILE["vocabulary"]])
    path = folder / "vocab.txt"
    path.write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return path


@cache
def small_bpe() -> Tokenizer:
    """300 tokens: 259 that are always there, and 41 pairs."""
    return Tokenizer.train_bpe(ENGLISH, 300)


def every_kind(folder: Path) -> dict[str, Tokenizer]:
    """A tokenizer of each kind, by its name."""
    wordpiece = Tokenizer.wordpiece(write_vocabulary(folder))
    return {"bpe": small_bpe(), "wordpiece": wordpiece, "characters": Tokenizer.characters("".join(TRICKY))}


KINDS = ("bpe", "wordpiece", "characters")
