"""Token ids and lengths a model does not have are refused by value; where a value cannot be seen, the answer is NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.decoding import generate
from jaxformer.errors import ConfigError, InputError
from jaxformer.models import build
from jaxformer.nn.cache import empty_cache
from tests.tiny import quick_key, tiny_config

V, CONTEXT = 11, 8
BAD_IDS = [V, V + 1, -1, -100, 2**31, 2**32 + 3, -(2**40)]
BAD_ARRAYS = {
    "float": (np.zeros((1, 2), np.float32), ": type float32; give integer ids"),
    "bool": (np.zeros((1, 2), bool), ": type bool; give integer ids"),
    "words": (np.array([["a"]]), ": type <U1; give integer ids"),
    "empty": (np.zeros((1, 0), np.int32), ": length 0; give between 1 and"),
    "no rows": (np.zeros((0, 3), np.int32), r": shape \(0, 3\); give at least one row"),
    "rank 0": (np.array(1), r": shape \(\); give ids of shape \(batch, length\)"),
    "rank 1": (np.zeros(3, np.int32), r": shape \(3,\); give ids of shape \(batch, length\)"),
    "rank 3": (np.zeros((1, 2, 3), np.int32), r": shape \(1, 2, 3\); give ids of shape \(batch, length\)"),
}
TOO_LONG = (np.zeros((1, CONTEXT + 1), np.int32), f": length {CONTEXT + 1}; give between 1 and {CONTEXT}, the longest")


@pytest.fixture(scope="module")
def model():
    return build(tiny_config(), rngs=quick_key(0))


@pytest.fixture(scope="module")
def extend(model):
    cache = empty_cache(model.config, 1, CONTEXT)
    return lambda tokens: model.extend(tokens, cache)[0]


@pytest.fixture(scope="module")
def entries(model, extend):
    return {"call": model, "extend": extend, "generate": lambda tokens: generate(model, tokens, 2)}


def ids(value: int) -> np.ndarray:
    return np.array([[1, 2], [3, value]], np.int64)


@pytest.mark.parametrize("value", BAD_IDS)
@pytest.mark.parametrize("entry", ["call", "extend", "generate"])
def test_bad_id_is_named(entries, entry, value):
    with pytest.raises(InputError, match=rf"^\w+\[1, 1\] = {value} is out of range; give ids from 0 to {V - 1}$"):
        entries[entry](ids(value))


@pytest.mark.parametrize("value", [V, V + 1, -1, -100])
@pytest.mark.parametrize("entry", ["call", "extend"])
def test_bad_id_in_a_device_array_is_named(entries, entry, value):
    with pytest.raises(InputError, match=rf"tokens\[1, 1\] = {value} is out of range"):
        entries[entry](jnp.asarray(ids(value), jnp.int32))


def test_an_unsigned_id_does_not_wrap(model):
    with pytest.raises(InputError, match=rf"= {2**64 - 1} is out of range"):
        model(np.array([[2**64 - 1]], np.uint64))


@pytest.mark.parametrize("name", BAD_ARRAYS)
@pytest.mark.parametrize("entry", ["call", "extend", "generate"])
def test_bad_array(entries, entry, name):
    array, said = BAD_ARRAYS[name]
    with pytest.raises(InputError, match=said):
        entries[entry](array)


@pytest.mark.parametrize("name", ["float", "bool", "empty", "rank 1", "rank 3"])
def test_bad_device_array(model, name):
    array, said = BAD_ARRAYS[name]
    with pytest.raises(InputError, match=said):
        model(jnp.asarray(array))
    with pytest.raises(InputError, match=said):
        jax.eval_shape(model, jnp.asarray(array))


@pytest.mark.parametrize("entry", ["call", "extend"])
def test_too_long(entries, entry):
    with pytest.raises(InputError, match=TOO_LONG[1]):
        entries[entry](TOO_LONG[0])
    with pytest.raises(InputError, match=TOO_LONG[1]):
        jax.eval_shape(entries[entry], jnp.asarray(TOO_LONG[0]))


def test_good_ids_are_accepted(model):
    for dtype in (np.int8, np.int32, np.int64):
        assert np.isfinite(model(np.array([[0, V - 1]], dtype))).all()


def test_under_jit_a_bad_id_gives_nan(model):
    run = jax.jit(lambda model, tokens: model(tokens))
    good = run(model, jnp.array([[1, 2, 3]], jnp.int32))
    assert np.isfinite(good).all()
    for value in (V, -1, -100, 2**31 - 1):
        bad = np.asarray(run(model, jnp.array([[1, 2, value]], jnp.int32)))
        assert np.isnan(bad[0, 2]).all(), value


def test_more_tokens_than_the_cache_takes(model):
    tokens = jnp.ones((1, 5), jnp.int32)
    _, cache = model.extend(tokens, empty_cache(model.config, 1, CONTEXT))
    with pytest.raises(InputError, match="the cache holds 5 tokens and 5 more exceed its 8"):
        model.extend(tokens, cache)
    _, small = model.extend(tokens[:, :2], empty_cache(model.config, 1, 3))
    with pytest.raises(InputError, match="the cache holds 2 tokens and 2 more exceed its 3"):
        model.extend(tokens[:, :2], small)
    with pytest.raises(InputError, match="the cache holds 0 tokens and 5 more exceed its 3"):
        model.extend(tokens, empty_cache(model.config, 1, 3))


def test_under_jit_more_tokens_than_the_cache_takes_give_nan(model):
    """Eight tokens are within the context, so that it is the cache of six that notices."""
    step = jax.jit(lambda model, tokens, cache: model.extend(tokens, cache))
    tokens = jnp.ones((1, 4), jnp.int32)
    first, cache = step(model, tokens, empty_cache(model.config, 1, 6))
    second, _ = step(model, tokens, cache)
    assert np.isfinite(first).all()
    assert np.isnan(second).all()


@pytest.mark.parametrize("n", [-1, True, 2**31])
def test_bad_number_of_tokens(model, n):
    with pytest.raises(ConfigError, match=f"^n_tokens = {n!r} is "):
        generate(model, np.zeros((1, 1), np.int32), n)
