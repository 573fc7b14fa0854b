"""Ids as other implementations have them, texts that come back, and files that transformers reads."""

import subprocess
import sys
import unicodedata
from itertools import product

import numpy as np
import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from jaxformer.data.parallel import read_parallel
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError
from tests.tricky import ENGLISH, KINDS, TRICKY, every_kind, small_bpe, write_vocabulary

SETTINGS = {
    "uncased": {},
    "cased": {"lowercase": False},
    "uncased with its accents": {"strip_accents": False},
    "cased without accents": {"lowercase": False, "strip_accents": True},
    "no Chinese": {"chinese": False},
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return write_vocabulary(tmp_path_factory.mktemp("wordpiece"))


def bert_flags(lowercase=True, strip_accents=None, chinese=True):
    return {"do_lower_case": lowercase, "strip_accents": strip_accents, "tokenize_chinese_chars": chinese}


def bert(vocabulary, flags):
    return transformers.BertTokenizer(vocab=str(vocabulary), **bert_flags(**flags))


@pytest.mark.parametrize("flags", SETTINGS.values(), ids=SETTINGS)
def test_wordpiece_is_berts(vocabulary, flags):
    ours, theirs = Tokenizer.wordpiece(vocabulary, **flags), bert(vocabulary, flags)
    assert len(set(TRICKY)) == len(TRICKY) >= 200
    assert ours.vocab_size == len(theirs)
    for text in TRICKY:
        ids = ours.encode(text, special=True)
        assert ids.tolist() == theirs(text)["input_ids"], ascii(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), ascii(text)


OTHER_UNICODE = {"ΣΑΣ", "\U0002b81f", "\ufdd0", "\uffff", "\U0010ffff", "\u0378", "a\u0378b", "\u08e2"}
"""Python has another letter for a sigma that ends a word, and takes for control characters what are no characters yet."""


@pytest.mark.parametrize("flags", SETTINGS.values(), ids=SETTINGS)
def test_wordpiece_is_berts_in_pure_python(vocabulary, flags):
    """It composes accents first."""
    ours, theirs = Tokenizer.wordpiece(vocabulary, **flags), BertTokenizerLegacy(str(vocabulary), **bert_flags(**flags))
    for text in (text for text in TRICKY if text not in OTHER_UNICODE):
        composed = ours.encode(unicodedata.normalize("NFC", text)).tolist()
        assert composed == theirs(text, add_special_tokens=False)["input_ids"], ascii(text)


def lines(folder, *tokens):
    path = folder / "vocab.txt"
    path.write_text("\n".join(tokens), encoding="utf-8")
    return path


BY_HAND = "[PAD] [UNK] [CLS] [SEP] un ##aff ##able the , 中 cafe ##s ab abc ##cd x ##x"


@pytest.mark.parametrize(
    ("text", "flags", "ids"),
    [
        ("unaffable", {}, [4, 5, 6]),
        ("Unable,the", {}, [4, 6, 8, 7]),
        ("Unable,the", {"lowercase": False}, [1, 8, 7]),
        ("abs abcs", {}, [12, 11, 13, 11]),
        ("abcd", {}, [1]),  # the longest piece comes first, and leaves ##d
        ("theun", {}, [1]),
        ("CAFÉS", {}, [10, 11]),
        ("cafe\u0301s", {}, [10, 11]),
        ("CAFÉS", {"strip_accents": False}, [1]),
        ("the中the", {}, [7, 9, 7]),
        ("the中the", {"chinese": False}, [1]),
        ("th\x00e\xa0the\u200b", {}, [7, 7]),
        ("x" * 100, {}, [15] + [16] * 99),
        ("x" * 101 + " the", {}, [1, 7]),
        ("", {}, []),
    ],
)
def test_wordpiece_by_hand(tmp_path, text, flags, ids):
    assert Tokenizer.wordpiece(lines(tmp_path, *BY_HAND.split()), **flags).encode(text).tolist() == ids


def assert_same_batch(ours, theirs):
    np.testing.assert_array_equal(ours.ids, theirs["input_ids"])
    np.testing.assert_array_equal(ours.valid, np.array(theirs["attention_mask"], bool))
    np.testing.assert_array_equal(ours.types, theirs["token_type_ids"])


@pytest.mark.parametrize("special", [True, False], ids=["special", "plain"])
@pytest.mark.parametrize("longest", [5, 6, 7, 12, 13, 64])
def test_batches_are_berts(vocabulary, special, longest):
    ours, theirs = Tokenizer.wordpiece(vocabulary), bert(vocabulary, {})
    firsts, seconds = zip(*product(["", "the fox", "the lazy dog jumps over " * 2, "a b c d e"], repeat=2), strict=True)
    cut = {"add_special_tokens": special, "truncation": "longest_first", "max_length": longest, "padding": True}
    assert_same_batch(ours.batch(firsts, special=special, longest=longest), theirs(list(firsts), **cut))
    assert_same_batch(ours.batch(firsts, seconds, special=special, longest=longest), theirs(list(firsts), list(seconds), **cut))


def test_a_batch_of_tricky_texts_is_berts(vocabulary):
    ours, theirs = Tokenizer.wordpiece(vocabulary), bert(vocabulary, {})
    assert_same_batch(ours.batch(TRICKY, TRICKY[::-1]), theirs(TRICKY, TRICKY[::-1], padding=True))


def test_a_batch_by_hand(tmp_path):
    batch = Tokenizer.wordpiece(lines(tmp_path, *BY_HAND.split())).batch(["unable", "the"], ["the, the", ""], longest=6)
    assert batch.ids.tolist() == [[2, 4, 3, 7, 8, 3], [2, 7, 3, 3, 0, 0]]
    assert batch.types.tolist() == [[0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 0, 0]]
    assert batch.valid.tolist() == [[True] * 6, [True] * 4 + [False] * 2]
    assert (batch.ids.dtype, batch.valid.dtype, batch.types.dtype) == (np.int32, np.bool_, np.int32)


def test_special_ids(vocabulary):
    kinds = small_bpe(), Tokenizer.wordpiece(vocabulary), Tokenizer.characters("ab")
    assert [(t.pad, t.start, t.end) for t in kinds] == [(0, 1, 2), (0, 2, 3), (None, None, None)]


ANY = st.text() | st.lists(st.sampled_from([*TRICKY, "<s>", "</s>", "<pad>"])).map("".join)


@settings(deadline=None)
@given(ANY)
def test_bpe_gives_back_any_text(text):
    ids = small_bpe().encode(text)
    assert small_bpe().decode(ids) == text
    assert ids.size == 0 or ids.min() >= 3  # what looks special is text
    assert small_bpe().decode(small_bpe().encode(text, special=True)) == text


def test_bpe_by_hand():
    """The pair a b is there three times and becomes id 259, then a ab twice, and becomes 260; the first byte is `!`."""
    tokenizer = Tokenizer.train_bpe(["aab", "aab", "ab"], 261)
    a, b = (3 + ord(letter) - ord("!") for letter in "ab")
    assert tokenizer.encode("aab").tolist() == [260]
    assert tokenizer.encode("abba", special=True).tolist() == [1, 259, b, a, 2]


def test_bpe_framed():
    batch = small_bpe().batch(["the", ""])
    the = small_bpe().encode("the").tolist()
    assert batch.ids.tolist() == [[1, *the, 2], [1, 2, *[0] * len(the)]]
    assert batch.valid.sum(1).tolist() == [2 + len(the), 2]


def test_bpe_may_find_fewer_pairs():
    assert Tokenizer.train_bpe(["aab"], 5000).vocab_size == 3 + 256 + 2


def test_bpe_of_the_same_texts_is_the_same():
    assert Tokenizer.train_bpe(iter(ENGLISH[::-1]), 300).backend.to_str() == small_bpe().backend.to_str()


def test_bpe_of_real_sentences(multi30k):
    texts = [text for side in read_parallel([multi30k], "validation") for text in side]
    tokenizer = Tokenizer.train_bpe(texts, 4000)
    rows = tokenizer.encode_all(texts)
    assert tokenizer.vocab_size == 4000
    assert [tokenizer.decode(row) for row in rows] == texts
    assert sum(map(len, rows)) < sum(map(len, texts)) / 3.5


@settings(deadline=None)
@given(st.text(min_size=1))
def test_characters_round_trip(text):
    tokenizer = Tokenizer.characters(text)
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert tokenizer.decode(ids) == text
    assert tokenizer.alphabet == "".join(sorted(set(text)))
    assert ids.tolist() == [tokenizer.alphabet.index(character) for character in text]


def test_a_long_text_of_characters_is_encoded_in_parts(monkeypatch):
    tokenizer, text = Tokenizer.characters("abcdef"), "fedcbaab"
    whole = tokenizer.encode(text)
    monkeypatch.setattr("jaxformer.data.tokenizers.AT_ONCE", 3)
    np.testing.assert_array_equal(tokenizer.encode(text), whole)
    np.testing.assert_array_equal(tokenizer.encode(""), np.zeros(0, np.int32))
    with pytest.raises(InputError, match=r"character 'x' \(position 7\)"):
        tokenizer.encode("fedcbaax")


def test_characters_in_a_batch():
    batch = Tokenizer.characters("abc").batch(["cab", "b"], ["a", "bb"])
    assert batch.ids.tolist() == [[2, 0, 1, 0], [1, 1, 1, 0]]
    assert batch.types.tolist() == [[0, 0, 0, 1], [0, 1, 1, 0]]
    assert batch.valid.tolist() == [[True] * 4, [True] * 3 + [False]]


def test_what_a_text_begins_after():
    assert [Tokenizer.characters(text).opening for text in ("b\na\t", "ba")] == ["\n", "a"]
    assert small_bpe().opening == ""


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded(tmp_path, tmp_path_factory, kind):
    tokenizer = every_kind(tmp_path_factory.mktemp("kind"))[kind]
    first, again = tmp_path / "tokenizer.json", tmp_path / "again.json"
    tokenizer.save(first)
    loaded = Tokenizer.load(first)
    loaded.save(again)
    assert first.read_bytes() == again.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.json", "tokenizer.json"]
    texts = [*TRICKY, "<s>", "a</s>"] if kind != "characters" else TRICKY
    for ours, theirs in zip(tokenizer.encode_all(texts), loaded.encode_all(texts), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (loaded.pad, loaded.start, loaded.end, loaded.alphabet) == (
        tokenizer.pad,
        tokenizer.start,
        tokenizer.end,
        tokenizer.alphabet,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_the_file(tmp_path, tmp_path_factory, kind):
    tokenizer = every_kind(tmp_path_factory.mktemp("kind"))[kind]
    tokenizer.save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in TRICKY if kind == "wordpiece" else [text for text in TRICKY if "<" not in text]:
        ids = tokenizer.encode(text, special=True)
        assert theirs(text)["input_ids"] == ids.tolist(), ascii(text)
        assert theirs.decode(ids, skip_special_tokens=True) == tokenizer.decode(ids), ascii(text)


def test_what_looks_special_is_text_to_transformers_too_where_asked(tmp_path):
    small_bpe().save(tmp_path / "tokenizer.json")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    ids = theirs("a<s>b</s>", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert ids == small_bpe().encode("a<s>b</s>").tolist()


def test_a_file_that_cuts_and_pads_by_itself(vocabulary, tmp_path):
    theirs = bert(vocabulary, {}).backend_tokenizer
    theirs.enable_truncation(3)
    theirs.enable_padding(length=9)
    theirs.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode("the lazy dog", special=True).size == 5


def test_bytes_that_are_all_tokens_are_no_characters():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert Tokenizer(backend).encode("\u2603").size == 3


def test_a_forked_process_tokenizes_without_a_word():
    """The library's threads are not there in the child."""
    code = """if True:
        import os
        from jaxformer.data.tokenizers import Tokenizer
        tokenizer = Tokenizer.characters("ab")
        tokenizer.encode_all(["ab"] * 2000)
        if not os.fork():
            os._exit(len(tokenizer.encode_all(["ab"] * 2000)) != 2000)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0\n", "")
