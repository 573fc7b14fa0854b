"""What is not a text, an id, a vocabulary or a tokenizer.json is refused in one line that says what to do."""

import numpy as np
import pytest

from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import ConfigError, InputError
from tests.tricky import ENGLISH, KINDS, every_kind, small_bpe


def said(call, *arguments, **options):
    with pytest.raises((InputError, ConfigError)) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_character():
    tokenizer = Tokenizer.characters("naive")
    wanted = "character 'ï' (position 2) is not in this model's vocabulary of 5 characters, 'aeinv'"
    assert said(tokenizer.encode, "naïve", name="prompt") == f"prompt: {wanted}"
    assert said(tokenizer.encode_all, ["nave", "naïve"]) == f"texts[1]: {wanted}"
    assert said(tokenizer.batch, ["nave"], ["naïve"]) == f"pairs[0]: {wanted}"


HALF = "character '\\ud800' (position 1) is half a surrogate pair and has no UTF-8 form; remove it"


@pytest.mark.usefixtures("untyped")
def test_no_texts():
    tokenizer = small_bpe()
    for encode in (tokenizer.encode_all, tokenizer.batch, lambda texts: Tokenizer.train_bpe(texts, 300)):
        assert said(encode, "text") == "texts is a str; give a list of strings"
        assert said(encode, 5) == "texts is an int; give a list of strings"
        assert said(encode, ["a", None]) == "texts[1] is a NoneType; give a string"
        assert said(encode, ["a", "a\ud800"]) == f"texts[1]: {HALF}"
    assert said(tokenizer.encode, b"text") == "text is a bytes; give a string"
    assert said(tokenizer.encode, "a\ud800") == f"text: {HALF}"
    assert said(Tokenizer.characters, "a\ud800") == f"text: {HALF}"
    assert said(Tokenizer.characters, "") == "text is empty; give one with every character that is to have an id"
    assert said(tokenizer.batch, []) == "texts holds no text; give at least one"
    assert said(tokenizer.batch, ["a", "b"], ["c"]) == "texts holds 2 texts, pairs 1; give a pair to each text"
    assert said(Tokenizer.train_bpe, ["", ""], 300) == "texts holds no text to learn from; give some"


def test_a_vocabulary_too_small_for_bytes():
    assert said(Tokenizer.train_bpe, ENGLISH, 258) == "vocab_size = 258 is out of range; give an integer from 259 to 16777216"
    assert Tokenizer.train_bpe(ENGLISH, 259).vocab_size == 259


@pytest.mark.parametrize(
    ("pairs", "special", "least"), [(None, True, 3), (["b"], True, 5), (None, False, 1), (["b"], False, 2)]
)
def test_no_room_for_a_token(pairs, special, least):
    assert small_bpe().batch(["abc"], pairs, special=special, longest=least).ids.shape == (1, least)
    refused = said(small_bpe().batch, ["abc"], pairs, special=special, longest=least - 1)
    if least == 1:
        assert refused == "longest = 0 is out of range; give an integer from 1 to 2147483647"
    else:
        assert refused == f"longest = {least - 1} leaves a text no room for a token; give {least} or more"


@pytest.mark.usefixtures("untyped")
def test_no_ids():
    assert said(small_bpe().decode, [5, -1]) == "ids[1] = -1 is out of range; give ids from 0 to 299"
    assert said(small_bpe().decode, np.array([300])) == "ids[0] = 300 is out of range; give ids from 0 to 299"
    assert said(small_bpe().decode, [1.0]) == "ids: type float64; give integers"
    assert said(small_bpe().decode, [[1]]) == "ids: shape (1, 1); give one row"
    assert small_bpe().decode([]) == ""


@pytest.mark.usefixtures("untyped")
def test_no_flags(tmp_path):
    for name in ("lowercase", "strip_accents", "chinese"):
        assert said(Tokenizer.wordpiece, tmp_path, **{name: 1}) == f"{name} = 1 is not True or False"


GOOD = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", " is empty; give a file with text"),
        (b"[PAD]\nz\xf6lf", " is not UTF-8: byte 0xf6 at offset 7; convert the file first"),
        ("\n".join([*GOOD, "fox", "the"]).encode(), ": lines 5 and 7 are both 'the'; keep one of them"),
        (b"To be, or not to be", " is not a WordPiece vocabulary: it has no line [PAD]; give BERT's vocab.txt"),
        *[
            (
                "\n".join(token for token in GOOD if token != gone).encode(),
                f" is not a WordPiece vocabulary: it has no line {gone}; give BERT's vocab.txt",
            )
            for gone in GOOD[:4]
        ],
    ],
    ids=["empty", "Latin-1", "twice", "prose", *GOOD[:4]],
)
def test_no_vocabulary(tmp_path, content, reason):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    assert said(Tokenizer.wordpiece, path) == f"{path}{reason}"


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["Unix", "Windows"])
def test_lines_end_at_line_breaks_alone(tmp_path, end):
    path = tmp_path / "vocab.txt"
    path.write_bytes(end.join([*GOOD, "a\u2028b", "fox", ""]).encode())
    tokenizer = Tokenizer.wordpiece(path)
    assert tokenizer.encode("the fox").tolist() == [4, 6]
    assert tokenizer.vocab_size == 7


MODEL = '{{"version": "1.0", "added_tokens": [], "model": {{"type": "BPE", "vocab": {}, "merges": {}}}}}'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The fox.", " is not a tokenizer.json, or is damaged: "),
        ("{}", " is not a tokenizer.json, or is damaged: Model missing"),
        ("[1, 2]", " is not a tokenizer.json, or is damaged: invalid type: sequence"),
        (MODEL.format('{"a": 0, "b": 1}', '["a c"]'), " is not a tokenizer.json, or is damaged: Token `c` out of vocabulary"),
        (MODEL.format("{}", "[]"), ": the tokenizer's 0 tokens do not have the ids from 0 on, one each"),
        (MODEL.format('{"a": 0, "b": 2}', "[]"), ": the tokenizer's 2 tokens do not have the ids from 0 on, one each"),
    ],
    ids=["prose", "no model", "a list", "a merge of nothing", "empty", "a hole"],
)
def test_no_tokenizer_file(tmp_path, text, reason):
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    refused = said(Tokenizer.load, path)
    assert refused.startswith(f"{path}{reason}")
    assert refused.endswith("again with save")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_short(tmp_path, tmp_path_factory, kind):
    path = tmp_path / "tokenizer.json"
    every_kind(tmp_path_factory.mktemp("kind"))[kind].save(path)
    whole = path.read_bytes()
    for end in range(1, len(whole) - 1, len(whole) // 20):
        path.write_bytes(whole[:end])
        said(Tokenizer.load, path)


def test_a_file_of_other_bytes(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"\x80\x04pickle")
    assert said(Tokenizer.load, path) == f"{path} is not UTF-8: byte 0x80 at offset 0; convert the file first"
    assert said(Tokenizer.load, tmp_path / "gone") == f"{tmp_path}/gone cannot be read: No such file or directory"


def test_a_library_that_panics(tmp_path, monkeypatch):
    class Panic(BaseException):
        pass

    def fail(_):
        raise Panic("index out of bounds\nand more")

    monkeypatch.setattr("tokenizers.Tokenizer", type("Library", (), {"from_str": staticmethod(fail)}))
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    assert "is damaged: index out of bounds; write it" in said(Tokenizer.load, path)


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "folder", "Is a directory"),
        (tmp_path / "none" / "tokenizer.json", "No such file or directory"),
        (tmp_path / "file" / "tokenizer.json", "Not a directory"),
    ):
        assert said(small_bpe().save, path) == f"{path} cannot be written: {reason}; name another file"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
