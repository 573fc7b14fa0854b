"""A tokenizer.json that pads, repeats or fails without end is refused; the steps of known tokenizers are not."""

import os
import subprocess
import sys

import pytest
import tokenizers

from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError
from tests.tokenizer_bombs import BOMBS, BYTES, charsmap, template, write_changed

PAD = {"direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}


def said(call, *arguments):
    with pytest.raises(InputError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_pads_without_end(tmp_path):
    """In a process of its own: the library would end it."""
    fixed = PAD | {"strategy": {"Fixed": 10**12}, "pad_to_multiple_of": None}
    multiple = PAD | {"strategy": "BatchLongest", "pad_to_multiple_of": 10**12}
    paths = [write_changed(tmp_path / f"{i}.json", padding=padding) for i, padding in enumerate((fixed, multiple))]
    code = "import sys; from jaxformer import Tokenizer; print([Tokenizer.load(p).encode('').size for p in sys.argv[1:]])"
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[0, 0]\n", "")


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb(tmp_path, name):
    changes, reason = BOMBS[name]
    path = write_changed(tmp_path / "tokenizer.json", **changes)
    refused = said(Tokenizer.load, path)
    assert refused.startswith(f"{path}: the tokenizer")
    assert reason in refused
    assert refused.endswith("; write the file again with save")


def test_a_backend_that_is_a_bomb(tmp_path):
    path = write_changed(tmp_path / "tokenizer.json", **BOMBS["replaced six times"][0])
    assert "may write more than 10^12" in said(Tokenizer, tokenizers.Tokenizer.from_file(str(path)))


def test_a_file_that_is_too_large(tmp_path):
    for name, read in (("tokenizer.json", Tokenizer.load), ("vocab.txt", Tokenizer.wordpiece)):
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, 8 * 2**30)
        wanted = "has 8,589,934,592 bytes, where a tokenizer has at most 134,217,728; give a tokenizer's file"
        assert said(read, tmp_path / name) == f"{tmp_path / name} {wanted}"


def test_a_tokenizer_that_fails_in_encoding(tmp_path):
    pattern = {"type": "Split", "pattern": {"Regex": "(?:a|a)*(?:a|aa)+$"}, "behavior": "Isolated", "invert": False}
    path = write_changed(tmp_path / "tokenizer.json", pre_tokenizer=pattern)
    text = "a" * 40 + "c"
    wanted = "Onig: Regex search error: retry-limit-in-match over; give others, or a tokenizer that can"
    assert said(Tokenizer.load(path).encode, text) == f"{path} cannot encode text: {wanted}"
    assert said(Tokenizer.load(path).encode_all, ["", text]) == f"{path} cannot encode a text: {wanted}"
    assert said(Tokenizer.load(path).batch, [text]).endswith(wanted)
    assert said(Tokenizer(Tokenizer.load(path).backend).encode, text).startswith("the tokenizer cannot encode text: Onig")


def test_a_tokenizer_that_fails_in_decoding(tmp_path):
    strip = {"type": "Strip", "content": "h", "start": 100, "stop": 100}
    path = write_changed(tmp_path / "tokenizer.json", decoder=strip)
    refused = said(Tokenizer.load(path).decode, Tokenizer.load(path).encode("h"))
    assert refused.startswith(f"{path} cannot write these ids as text: index out of bounds")
    assert refused.endswith("; give others, or a tokenizer that can")


def test_what_is_interrupted_is_not_refused(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    path = write_changed(tmp_path / "tokenizer.json")
    monkeypatch.setattr("tokenizers.Tokenizer", type("Library", (), {"from_str": staticmethod(stop)}))
    with pytest.raises(KeyboardInterrupt):
        Tokenizer.load(path)


def sequence(kind, *steps):
    return {"type": "Sequence", kind: [*steps]}


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


SPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
KNOWN = {
    "Llama 2": {
        "normalizer": sequence("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")),
        "pre_tokenizer": None,
        "post_processor": template(1, 1),
        "decoder": sequence(
            "decoders",
            replace("▁", " "),
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ),
    },
    "Llama 3": {
        "pre_tokenizer": sequence(
            "pretokenizers",
            {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+"}, "behavior": "Isolated", "invert": False},
            BYTES,
        ),
        "post_processor": sequence("processors", BYTES, template(1, 1)),
    },
    "Whisper": {"post_processor": template(4, 1)},
    "CLIP": {"normalizer": sequence("normalizers", {"type": "NFC"}, replace("\\s+", " ", "Regex"), {"type": "Lowercase"})},
    "T5": {"normalizer": charsmap(18), "pre_tokenizer": SPACE, "decoder": SPACE},
    "ALBERT": {
        "normalizer": sequence(
            "normalizers",
            replace("``", '"'),
            replace("''", '"'),
            {"type": "NFKD"},
            {"type": "StripAccents"},
            {"type": "Lowercase"},
            charsmap(18),
            replace(" {2,}", " ", "Regex"),
        ),
        "pre_tokenizer": sequence("pretokenizers", {"type": "WhitespaceSplit"}, SPACE),
        "decoder": SPACE,
    },
}
"""The steps of tokenizers that are in use; a table of SentencePiece has 18 letters for one at most."""


@pytest.mark.parametrize("name", KNOWN)
def test_the_steps_of_known_tokenizers(tmp_path, name):
    path = write_changed(tmp_path / "tokenizer.json", **KNOWN[name])
    theirs = tokenizers.Tokenizer.from_file(str(path))
    for text in ("the quick  brown fox", "``A'' 123\u2603 naïve"):
        ids = Tokenizer.load(path).encode(text, special=True).tolist()
        assert ids == theirs.encode(text).ids
        assert Tokenizer.load(path).decode(ids) == theirs.decode(ids)
