"""From a text to batches: nothing is lost, nothing is counted twice, and every refusal says what to do."""

import errno
import hashlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxformer.config.settings import IGNORE_INDEX
from jaxformer.data.batches import cover, draw_windows, split
from jaxformer.data.corpora import CORPORA, FOLDER, read_corpus, read_text
from jaxformer.data.tokenizers import Tokenizer
from jaxformer.errors import InputError


def test_text_file(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("zwölf\r\n".encode())
    assert read_corpus(str(path)) == "zwölf\r\n"


def test_not_utf8(tmp_path):
    path = tmp_path / "latin"
    path.write_bytes("zwölf".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin is not UTF-8: byte 0xf6 at offset 2; convert the file first$"):
        read_corpus(str(path))


def test_empty_file(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match=r"empty is empty; give a file with text$"):
        read_corpus(str(tmp_path / "empty"))


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"nothing is neither a file nor a corpus; give a file, or one of tinyshakespeare$"):
        read_corpus(str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="is neither a file nor a corpus"):
        read_corpus(str(tmp_path))
    with pytest.raises(InputError, match="gone cannot be read: No such file"):
        read_text(tmp_path / "gone")


def test_near_name():
    with pytest.raises(InputError, match=r"tinyshakespear is neither a file nor a corpus; did you mean tinyshakespeare\?$"):
        read_corpus("tinyshakespear")


def test_the_folder_comes_before_the_network(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr("pooch.retrieve", lambda *_, **__: pytest.fail("asked the network"))
    text = replace(CORPORA["tinyshakespeare"]["text"], sha256=hashlib.sha256(b"First Citizen").hexdigest())
    monkeypatch.setitem(CORPORA, "tinyshakespeare", {"text": text})
    (tmp_path / text.file).write_text("First Citizen")
    assert read_corpus("tinyshakespeare") == "First Citizen"
    (tmp_path / text.file).write_text("First citizen")
    with pytest.raises(InputError, match=rf"^{tmp_path}/{text.file} does not have the wanted sha256 {text.sha256}; put https"):
        read_corpus("tinyshakespeare")


UNREACHABLE = "is not in the cache and raw.githubusercontent.com cannot be reached; give --data FILE, or set"
WRONG = f"does not have the wanted sha256 {CORPORA['tinyshakespeare']['text'].sha256}; give --data FILE"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (OSError(errno.ENETUNREACH, "no route"), UNREACHABLE),
        (ConnectionError("refused"), UNREACHABLE),
        (ValueError("SHA256 hash does not match"), WRONG),
    ],
)
def test_download_that_fails(tmp_path, monkeypatch, fault, said):
    def fail(*_, **__):
        raise fault

    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr("pooch.retrieve", fail)
    with pytest.raises(InputError, match=said) as caught:
        read_corpus("tinyshakespeare")
    assert "\n" not in str(caught.value)


def test_tiny_shakespeare(tiny_shakespeare):
    text = read_corpus(str(tiny_shakespeare))
    tokenizer = Tokenizer.characters(text)
    assert len(text) == 1_115_394
    assert tokenizer.vocab_size == 65
    train, validate = split(tokenizer.encode(text), 256)
    assert (len(train), len(validate)) == (1_003_854, 111_540)
    assert tokenizer.decode(train[:14]) == "First Citizen:"


def test_split_keeps_everything_in_order():
    ids = np.arange(101, dtype=np.int32)
    train, validate = split(ids, 8)
    assert len(train) == 90
    assert np.array_equal(np.concatenate([train, validate]), ids)


def test_text_too_short():
    assert len(split(np.zeros(90, np.int32), 8)[1]) == 9
    with pytest.raises(InputError, match=r"^the text has 89 tokens, its shorter split 9; a window takes 10: give a longer"):
        split(np.zeros(89, np.int32), 9)
    with pytest.raises(InputError, match="the text has 1 tokens"):
        split(np.zeros(1, np.int32), 1)


def test_windows_are_a_function_of_the_key():
    ids, draw = jnp.arange(50, dtype=jnp.int32), jax.jit(draw_windows, static_argnums=(2, 3))
    first, again, other = (draw(ids, jax.random.key(seed), 16, 8) for seed in (0, 0, 1))
    assert np.array_equal(first.inputs, again.inputs)
    assert not np.array_equal(first.inputs, other.inputs)


def test_windows_are_whole_and_every_start_comes():
    n, context = 13, 8
    windows = draw_windows(jnp.arange(n, dtype=jnp.int32), jax.random.key(0), 400, context)
    inputs, targets = np.asarray(windows.inputs), np.asarray(windows.targets)
    assert inputs.shape == targets.shape == (400, context)
    assert np.array_equal(inputs, inputs[:, :1] + np.arange(context))
    assert np.array_equal(targets, inputs + 1)
    assert set(inputs[:, 0].tolist()) == set(range(n - context))
    assert targets.max() == n - 1
    assert set(np.asarray(draw_windows(jnp.arange(9), jax.random.key(0), 5, context).inputs)[:, 0].tolist()) == {0}


@settings(deadline=None)
@given(n=st.integers(2, 200), batch=st.integers(1, 7), context=st.integers(1, 20))
def test_cover_predicts_every_token_once(n, batch, context):
    ids = np.arange(1000, 1000 + n, dtype=np.int32)
    windows = cover(ids, batch, context)
    inputs, targets = np.asarray(windows.inputs), np.asarray(windows.targets)
    assert inputs.shape == targets.shape
    assert inputs.shape[1:] == (batch, context)
    counted = targets != IGNORE_INDEX
    assert np.array_equal(targets[counted], ids[1:])
    assert np.array_equal(inputs[counted], ids[:-1])
    assert (inputs[~counted] == 0).all()
    assert (len(inputs) - 1) * batch * context < n - 1
