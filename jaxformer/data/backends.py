"""Tokenizers of the `tokenizers` library from unchecked files: read, and refused if a text could grow without bounds.

The library does what a file says: it pads to ten billion tokens, or writes a million characters for each `a`. Therefore the
most that a tokenizer's steps can write is computed from their settings, before any text goes through them.
"""

import base64
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxformer.data.corpora import read_text
from jaxformer.errors import InputError, JaxformerError, first_line, printable
from jaxformer.runtime.packages import extra_package
from jaxformer.validation.fields import MOST_BYTES, check_path

with extra_package():
    import tokenizers

LONGEST_TOKEN, LONGEST_SETTING = 2**16, 1000
"""Most characters of a token, and of a text in the settings of a step."""
MOST_GROWTH = 256
"""Most characters that a tokenizer may write per character. SentencePiece's reach 72: an Arabic ligature stands for 18
letters.
"""
MOST_IN_A_WORD = 1000
"""Most characters of a word for WordPiece, whose time grows with their square. BERT has 100."""

GROUPS = ("normalizer", "pre_tokenizer"), ("post_processor",), ("decoder",)
"""Groups of steps that are applied one after another."""
GROWTH = {"ByteLevel": 5, "BertNormalizer": 3, "Metaspace": 2, "BPEDecoder": 2, "CTC": 2, "WordPiece": 2}
"""Most characters written per character, by type of step: bytes become characters, and spaces are inserted."""


NO_FILE, AGAIN = "is not a tokenizer.json, or is damaged", "write it again with save"


@contextmanager
def foreign(what: str, remedy: str) -> Iterator[None]:
    """Context manager for calls of the library: whatever it raises becomes an InputError. Its panics are not an Exception."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError, JaxformerError):
        raise
    except BaseException as error:
        raise InputError(f"{what}: {printable(first_line(error))}; {remedy}") from None


def read_bounded(path: Path | str) -> str:
    """Read the text of a tokenizer's file; InputError if it is larger than any tokenizer."""
    path = check_path("path", path)
    if path.is_file() and (size := path.stat().st_size) > MOST_BYTES:
        raise InputError(f"{path} has {size:,} bytes, where a tokenizer has at most {MOST_BYTES:,}; give a tokenizer's file")
    return read_text(path, unpacked=MOST_BYTES // 2**20)


def read_backend(path: Path | str) -> tokenizers.Tokenizer:
    """Read a tokenizer.json that nothing has checked so far."""
    text = read_bounded(path)
    with foreign(f"{path} {NO_FILE}", AGAIN):
        return tokenizers.Tokenizer.from_str(text)


def check_backend(backend: tokenizers.Tokenizer) -> None:
    """Check a backend and switch off its truncation and padding.

    InputError for ids with gaps, and for tokens or growth of a step beyond the limits above.
    """
    backend.no_truncation()
    backend.no_padding()
    vocabulary = backend.get_vocab()
    if not vocabulary or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise InputError(f"the tokenizer's {len(vocabulary)} tokens do not have the ids from 0 on, one each")
    if (longest := max(map(len, vocabulary))) > LONGEST_TOKEN:
        raise InputError(f"the tokenizer has a token of {longest:,} characters, where {LONGEST_TOKEN:,} are the most")
    for group in GROUPS:
        _check_steps({name: json.loads(step.__getstate__()) for name in group if (step := getattr(backend, name)) is not None})
    names = "unk_token", "continuing_subword_prefix", "end_of_word_suffix"
    _check_settings("model", [getattr(backend.model, name, None) for name in names])
    if (word := getattr(backend.model, "max_input_chars_per_word", 0)) > MOST_IN_A_WORD:
        raise InputError(f"the tokenizer's max_input_chars_per_word is {word}, where {MOST_IN_A_WORD} is the most")
    with foreign("the tokenizer cannot encode an empty text", "give another one"):
        most = max([0, *backend.encode("").ids, *backend.encode("", "").ids])
    if most >= len(vocabulary):
        raise InputError(f"the tokenizer's post_processor has the id {most}, where {len(vocabulary) - 1} is the last one")


def _check_steps(steps: dict[str, Any]) -> None:
    for name, step in steps.items():
        _check_settings(name, step)
    if (growth := math.prod(map(_growth, steps.values()))) > MOST_GROWTH:
        written = f"{growth:,}" if growth < 10**12 else "more than 10^12"
        what = f"the tokenizer's {' and '.join(steps)} may write {written} characters or tokens for one"
        raise InputError(f"{what}, where {MOST_GROWTH} are the most")


def _check_settings(name: str, settings: Any) -> None:
    if (longest := max(map(len, _texts(settings)), default=0)) > LONGEST_SETTING:
        what = f"the tokenizer's {name} holds a text of {longest:,} characters"
        raise InputError(f"{what}, where {LONGEST_SETTING:,} are the most")


def _texts(settings: Any) -> Iterator[str]:
    """Yield every text in a step's settings that the step may write."""
    if isinstance(settings, str):
        yield settings
    elif isinstance(settings, list):
        for each in settings:
            yield from _texts(each)
    elif isinstance(settings, dict):
        yield from _texts([each for name, each in settings.items() if name not in ("pattern", "precompiled_charsmap")])


def _growth(step: dict[str, Any]) -> int:
    """Return the most characters that a step writes per character, or the most tokens if it adds tokens to a text."""
    match step:
        case {"type": "Sequence", **parts}:
            return math.prod(_growth(part) for steps in parts.values() for part in steps)
        case {"type": "Replace", "pattern": {"String": old}, "content": new} if old:
            return max(1, -(-len(new) // len(old)))
        case {"type": "Replace", "content": new} | {"type": "Prepend", "prepend": new}:
            return 1 + len(new)  # a pattern may match between two characters
        case {"type": "Precompiled", "precompiled_charsmap": packed}:
            table = base64.b64decode(packed)  # size of an index, the index, zero-terminated texts
            texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
            return max(1, *(len(text.decode(errors="replace")) for text in texts))
        case {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}:
            return max(sum(_template_tokens(piece, special) for piece in template) for template in (single, pair))
        case _:
            return GROWTH.get(step["type"], 1)


def _template_tokens(piece: dict[str, Any], special: dict[str, Any]) -> int:
    return len(special[piece["SpecialToken"]["id"]]["ids"]) if "SpecialToken" in piece else 1
