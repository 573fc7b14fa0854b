"""Files of tokenizers that are small and would become a flood: each is one of ours, with other steps."""

import base64
import json
from pathlib import Path
from typing import Any

from tests.tricky import small_bpe


def _chain(kind: str, step: dict[str, Any], times: int) -> dict[str, Any]:
    return {"type": "Sequence", kind: [step] * times}


def charsmap(longest: int) -> dict[str, Any]:
    """A table of SentencePiece whose longest text has so many characters, after an index that finds nothing."""
    table = (1024).to_bytes(4, "little") + bytes(1024) + b"ab\0" + b"x" * longest + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def template(tokens: int, places: int) -> dict[str, Any]:
    """A frame of a special token that is there in so many places, and stands for so many tokens."""
    special, text = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    frame = {"id": "<s>", "ids": [1] * tokens, "tokens": ["<s>"] * tokens}
    pair = [text, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "type": "TemplateProcessing",
        "single": [*[special] * places, text],
        "pair": pair,
        "special_tokens": {"<s>": frame},
    }


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
WORDPIECE = {
    "type": "WordPiece",
    "unk_token": "<pad>",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 2**63,
    "vocab": {"<pad>": 0, "<s>": 1, "</s>": 2, "x": 3, "##x": 4},
}
LONG = "u" * 10**6
UNKNOWN = {"type": "WordLevel", "unk_token": LONG, "vocab": {"<pad>": 0, "<s>": 1, "</s>": 2, LONG: 3}}

BOMBS: dict[str, tuple[dict[str, Any], str]] = {
    "replaced six times": (
        {"normalizer": _chain("normalizers", REPLACE, 6)},
        "normalizer and pre_tokenizer may write more than 10^12 characters or tokens for one, where 256 are the most",
    ),
    "prepended": (
        {"normalizer": {"type": "Prepend", "prepend": "x" * 10**7}},
        "normalizer holds a text of 10,000,000 characters, where 1,000 are the most",
    ),
    "bytes of bytes": (
        {"pre_tokenizer": _chain("pretokenizers", BYTES, 40)},
        "pre_tokenizer may write more than 10^12 characters or tokens for one, where 256 are the most",
    ),
    "a frame": ({"post_processor": template(2000, 2000)}, "post_processor may write 4,000,001 characters or tokens"),
    "replaced in a decoder": (
        {"decoder": {**REPLACE, "content": "a" * 10**7}},
        "decoder holds a text of 10,000,000 characters, where 1,000 are the most",
    ),
    "spaces of spaces": (
        {"decoder": _chain("decoders", {"type": "CTC", "pad_token": "z", "word_delimiter_token": "", "cleanup": True}, 30)},
        "decoder may write 1,073,741,824 characters or tokens for one, where 256 are the most",
    ),
    "a table": ({"normalizer": charsmap(10**6)}, "normalizer and pre_tokenizer may write 5,000,000 characters or tokens"),
    "the unknown": ({"model": UNKNOWN}, "the tokenizer has a token of 1,000,000 characters, where 65,536 are the most"),
    "a word": ({"model": WORDPIECE}, "max_input_chars_per_word is 9223372036854775808, where 1000 is the most"),
    "an id": (
        {"post_processor": {"type": "BertProcessing", "sep": ["</s>", 4 * 10**9], "cls": ["<s>", 1]}},
        "post_processor has the id 4000000000, where 299 is the last one",
    ),
}
"""What is changed, and what is said of it."""


def write_changed(path: Path, **changes: Any) -> Path:
    """A tokenizer.json with other steps."""
    path.write_text(json.dumps(json.loads(small_bpe().backend.to_str()) | changes), "utf-8")
    return path
