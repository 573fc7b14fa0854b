"""Sentence pairs from files: what is read, what is left out, and what is refused in one line."""

import gzip
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from jaxformer.data.corpora import CORPORA, FOLDER
from jaxformer.data.parallel import Parallel, encode_pairs, lines, read_parallel, read_splits
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError

PAIRS = Parallel(["eins", "zwei Hunde", "drei"], ["one", "two dogs", "three"])


@pytest.fixture
def files(tmp_path):
    """files(source, target): their paths."""

    def write(*texts):
        paths = [tmp_path / name for name in ("train.de", "train.en")]
        for path, text in zip(paths, texts, strict=False):
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return [str(path) for path in paths]

    return write


@pytest.mark.parametrize("end", ["\n", "", "\r\n"])
def test_two_files(files, end):
    between = end or "\n"
    texts = [between.join(side) + end for side in PAIRS]
    assert read_parallel(files(*texts)) == PAIRS


def test_one_file_of_two_columns(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in zip(*PAIRS, strict=True)))
    assert read_parallel([str(path)]) == PAIRS


def test_packed_files(tmp_path):
    paths = [tmp_path / "a.gz", tmp_path / "b.gz"]
    for path, side in zip(paths, PAIRS, strict=True):
        path.write_bytes(gzip.compress("\n".join(side).encode()))
    assert read_parallel([str(path) for path in paths]) == PAIRS


def test_only_line_feeds_end_a_line(tmp_path):
    (tmp_path / "odd").write_text("a\u2028b\x0bc\x85d\ne\n", "utf-8", newline="")
    assert lines(tmp_path / "odd") == ["a\u2028b\x0bc\x85d", "e"]


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        (
            "a\nb\n",
            "c\n",
            r"train.de has 2 lines, .*train.en 1: line 2 of .*train.de has no partner; give as many lines in both$",
        ),
        ("a\n", "c\nd\ne\n", r"train.de has 1 lines, .*train.en 3: line 2 of .*train.en has no partner"),
        (b"a\n\xff\n", "c\nd\n", r"train.de is not UTF-8: byte 0xff at offset 2; convert the file first$"),
        ("", "c\n", r"train.de is empty; give a file with text$"),
        (" \n\n", "c\nd\n", r"train.de holds no pair of which both sides have text"),
    ],
)
def test_files_that_do_not_fit(files, source, target, said):
    with pytest.raises(InputError, match=said) as caught:
        read_parallel(files(source, target))
    assert "\n" not in str(caught.value)


def test_columns_that_do_not_fit(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\n")
    with pytest.raises(InputError, match=r"pairs.tsv line 2 has 1 columns; give a source, a tab and a target in each line$"):
        read_parallel([str(tmp_path / "pairs.tsv")])


def test_a_packed_file_that_is_damaged(tmp_path):
    path = tmp_path / "a.gz"
    for content in (gzip.compress(b"a\n" * 99)[:-9], b"no gzip"):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a.gz cannot be unpacked: .*; pack the file again$"):
            lines(path)


def test_more_than_two_names():
    with pytest.raises(InputError, match=r"data: \['a', 'b', 'c'\] is not one or two names; give a corpus"):
        read_parallel(["a", "b", "c"])


def test_a_corpus_of_another_kind_has_no_pairs():
    with pytest.raises(
        InputError, match=r"tinyshakespeare is neither a file nor a corpus; give a file, or one of multi30k-de-en$"
    ):
        read_parallel(["tinyshakespeare"])


def test_empty_lines_are_left_out_and_said(files):
    with pytest.warns(UserWarning, match=r"train.en line 2 is empty; 2 of 4 pairs are left out$"):
        assert read_parallel(files("a\nb\n \nd\n", "e\n\n\nh\n")) == (["a", "d"], ["e", "h"])


def test_an_empty_line_of_two_columns(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n\nc\td\n")
    with pytest.warns(UserWarning, match=r"pairs.tsv line 2 is empty; 1 of 3 pairs are left out$"):
        assert read_parallel([str(tmp_path / "pairs.tsv")]) == (["a", "c"], ["b", "d"])


def test_a_byte_order_mark_is_no_text(files):
    assert read_parallel(files(b"\xef\xbb\xbfa\n", "b\n")) == (["a"], ["b"])


def test_a_packed_file_by_another_name(files):
    assert read_parallel(files(gzip.compress(b"a\n"), "b\n")) == (["a"], ["b"])


def test_a_name_too_long_for_a_file():
    with pytest.raises(InputError, match="is neither a file nor a corpus"):
        read_parallel(["x" * 300])


def test_splits_of_files(files):
    texts = [f"{i}\n" for i in range(25)]
    splits = read_splits(files("".join(texts), "".join(texts)))
    assert [len(split.sources) for split in splits] == [23, 2, 2]
    assert splits.train.sources + splits.validation.sources == [text.strip() for text in texts]
    assert splits.test == splits.validation


def test_splits_that_are_given(files, tmp_path):
    (tmp_path / "more.tsv").write_text("v\tw\n")
    splits = read_splits(files("a\nb\n", "c\nd\n"), validation=[str(tmp_path / "more.tsv")])
    assert [split.sources for split in splits] == [["a", "b"], ["v"], ["v"]]


def test_too_few_pairs_to_hold_some_out(files):
    with pytest.raises(InputError, match="data: 2 pairs are too few to hold some out; give ten or more, or --validation"):
        read_splits(files("a\nb\n", "c\nd\n"))


def test_ids_of_pairs():
    tokenizer = Tokenizer.train_bpe([*PAIRS.sources, *PAIRS.targets], 259)
    with pytest.warns(UserWarning, match="1 of 3 pairs have more than 7 tokens and are left out"):
        sources, targets = encode_pairs(tokenizer, PAIRS, 7)
    start, end, _ = tokenizer.frame
    assert [tokenizer.decode(row) for row in sources] == ["eins", "drei"]
    assert [(row[0], row[-1]) for row in targets] == [(start, end)] * 2
    assert all(row[-1] == end != row[0] for row in sources)
    assert {row.dtype for row in [*sources, *targets]} == {np.dtype(np.int32)}
    with pytest.raises(InputError, match="no pair has at most 2 tokens a side; allow longer ones"):
        encode_pairs(tokenizer, PAIRS, 2)


def test_the_folder_comes_before_the_network(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("asked the network"))
    (tmp_path / "multi30k").mkdir()
    for part in ("test.source", "test.target"):
        packed = gzip.compress(part.encode())
        source = replace(CORPORA["multi30k-de-en"][part], sha256=hashlib.sha256(packed).hexdigest())
        monkeypatch.setitem(CORPORA["multi30k-de-en"], part, source)
        (tmp_path / source.file).write_bytes(packed)
    assert read_parallel(["multi30k-de-en"], "test") == (["test.source"], ["test.target"])


def test_multi30k(multi30k):
    splits = read_splits([multi30k])
    assert [len(split.targets) for split in splits] == [29_000, 1_014, 1_000]
    assert splits.train.sources[0] == "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche."
    assert splits.test.targets[0] == "A man in an orange hat starring at something."
