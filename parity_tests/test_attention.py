import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import jaxformer.nn.attention as ours
import torch_ref.nn.attention as theirs
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_jax
from jaxformer.parity.inputs import widen
from jaxformer.parity.measure import check_float64
from parity_tests.helpers import (
    B,
    D,
    H,
    K,
    N,
    S,
    T,
    block_config,
    causal,
    check_function,
    checks,
    noise,
    padding,
    run_check,
    twins,
)

Q, KEYS, VALUES = noise(B, T, N, H), noise(B, S, N, H, seed=1), noise(B, S, N, H, seed=2)
FEW_KEYS, FEW_VALUES = noise(B, S, K, H, seed=3), noise(B, S, K, H, seed=4)
MASKS = {"all": None, "padding": padding(B, S), "each query its own": noise(B, N, T, S, seed=5) > 0.3}
masks = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
DEAD = padding(B, S)


def on(side, mask):
    return None if mask is None else side(mask)


def torch_attention(q, k, v, mask=None):
    return theirs.weighted_values(theirs.attention_weights(q, k, mask), v)


def fused_attention(mask):
    """torch's own, which repeats key heads itself."""
    return lambda q, k, v: functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), on(torch.from_numpy, mask), enable_gqa=True
    ).transpose(1, 2)


@masks
@pytest.mark.parametrize("keys", [KEYS, FEW_KEYS], ids=["all heads", "grouped"])
def test_weights_equal_torchs(keys, mask):
    check_function(
        lambda q, k: ours.attention_weights(q, k, on(jnp.asarray, mask)),
        lambda q, k: theirs.attention_weights(q, k, on(torch.from_numpy, mask)),
        Q,
        keys,
    )


@masks
@pytest.mark.parametrize(("keys", "values"), [(KEYS, VALUES), (FEW_KEYS, FEW_VALUES)], ids=["all heads", "grouped"])
def test_attention_equals_torchs(keys, values, mask):
    check_function(
        lambda q, k, v: ours.attention(q, k, v, on(jnp.asarray, mask)),
        lambda q, k, v: torch_attention(q, k, v, on(torch.from_numpy, mask)),
        Q,
        keys,
        values,
    )


@masks
@pytest.mark.parametrize(("keys", "values"), [(KEYS, VALUES), (FEW_KEYS, FEW_VALUES)], ids=["all heads", "grouped"])
def test_attention_equals_torchs_own(keys, values, mask):
    check_function(lambda q, k, v: ours.attention(q, k, v, on(jnp.asarray, mask)), fused_attention(mask), Q, keys, values)


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_small_and_large_scores(scale):
    check_function(ours.attention_weights, theirs.attention_weights, Q * np.float32(scale), KEYS)


def test_huge_scores_pick_the_largest():
    weights = ours.attention_weights(jnp.asarray(Q * np.float32(1e30)), jnp.asarray(KEYS))
    assert np.array_equal(np.sort(weights, -1)[..., -2:], np.broadcast_to(np.float32([0, 1]), (B, N, T, 2)))


def test_a_row_without_keys_gives_zeros_in_jax():
    assert not np.asarray(ours.attention(*map(jnp.asarray, (Q, KEYS, VALUES, DEAD)))[-1]).any()


def test_a_row_without_keys_gives_zeros_in_torch():
    assert not torch_attention(*map(torch.from_numpy, (Q, KEYS, VALUES, DEAD)))[-1].any()


def test_a_row_without_keys_has_zero_gradients_in_jax():
    mask = jnp.asarray(DEAD)
    gradients = jax.grad(lambda *qkv: jnp.square(ours.attention(*qkv, mask)).sum(), (0, 1, 2))(
        *map(jnp.asarray, (Q, KEYS, VALUES))
    )
    assert all(np.array_equal(gradient[-1], np.zeros_like(gradient[-1])) for gradient in gradients)


def test_a_row_without_keys_has_zero_gradients_in_torch():
    qkv = [torch.from_numpy(array).requires_grad_() for array in (Q, KEYS, VALUES)]
    torch_attention(*qkv, torch.from_numpy(DEAD)).square().sum().backward()
    assert all(torch.equal(array.grad[-1], torch.zeros_like(array.grad[-1])) for array in qkv)


def test_weights_of_a_living_row_sum_to_1():
    weights = ours.attention_weights(jnp.asarray(Q), jnp.asarray(KEYS), jnp.asarray(DEAD))
    assert np.allclose(weights[:-1].sum(-1), 1, atol=S * 2**-23, rtol=0)


def test_scores_of_bfloat16_are_summed_in_float32():
    q, k = jnp.asarray(Q, jnp.bfloat16), jnp.asarray(KEYS, jnp.bfloat16)
    assert ours.attention_weights(q, k).dtype == jnp.float32


X, MEMORY = noise(B, T, D), noise(B, S, D, seed=1)
SELF = {
    "separate": {},
    "fused": {"projections": "fused"},
    "no bias": {"qkv_bias": False, "output_bias": False},
    "no output": {"output_projection": False, "output_bias": False},
    "grouped": {"n_kv_heads": K},
    "grouped, fused": {"n_kv_heads": K, "projections": "fused"},
}
CROSS = {"cross": {}, "cross, grouped": {"n_kv_heads": K}, "cross, fused elsewhere": {"projections": "fused"}}


@functools.cache
def attention_twins(name):
    config = block_config(**(SELF | CROSS)[name])
    cross = name in CROSS
    modules = ours.MultiHeadAttention(config, cross=cross), theirs.MultiHeadAttention(config, cross=cross)
    if cross:
        return twins(*modules, X, MEMORY, padding(B, S))
    return twins(*modules, X, causal(B, T), call=lambda module, x, mask: module(x, None, mask))


@checks
@pytest.mark.parametrize("name", [*SELF, *CROSS])
def test_multi_head_attention(name, check):
    run_check(check, *attention_twins(name))


def unpacked(state):
    """torch packs the three projections' weights and biases into one."""
    for kind in ("weight", "bias"):
        parts = state.pop(f"in_proj_{kind}").chunk(3)
        state |= {f"{name}.{kind}": part for name, part in zip(("query", "key", "value"), parts, strict=True)}
        state[f"out.{kind}"] = state.pop(f"out_proj.{kind}")
    return state


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_equal_to_torchs_own_module(cross):
    source, mask = (MEMORY, padding(B, S)) if cross else (X, causal(B, T))
    alive = mask.any(-1).all((1, 2))
    x, source, mask = X[alive].astype(np.float64), source[alive].astype(np.float64), mask[alive]
    module = nn.MultiheadAttention(D, N, batch_first=True, dtype=torch.float64)
    for i, tensor in enumerate(module.parameters()):
        tensor.data = torch.from_numpy(noise(*tensor.shape, seed=i)).double()
    hidden = torch.from_numpy(~np.broadcast_to(mask, (len(x), N, T, source.shape[1]))).flatten(0, 1)
    reference = module(torch.from_numpy(x), *[torch.from_numpy(source)] * 2, attn_mask=hidden)[0]
    like = widen(ours.MultiHeadAttention(block_config(), cross=cross))
    found = to_jax(unpacked(module.state_dict()), like, TWIN)(*map(jnp.asarray, (x, source, mask)))
    check_float64("attention", found, reference)
