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
from jaxformer.convert.registry import FAMILIES
from jaxformer.convert.rules import to_jax
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import (
    B,
    D,
    H,
    K,
    N,
    S,
    T,
    bias_per_head,
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


def torch_attention(q, k, v, mask=None, bias=None):
    return theirs.weighted_values(theirs.attention_weights(q, k, mask, bias), v)


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


BIAS = bias_per_head(B, T, S)


@masks
def test_biased_attention_equals_torchs(mask):
    check_function(
        lambda q, k, v, bias: ours.attention(q, k, v, on(jnp.asarray, mask), bias),
        lambda q, k, v, bias: torch_attention(q, k, v, on(torch.from_numpy, mask), bias),
        Q,
        FEW_KEYS,
        FEW_VALUES,
        BIAS,
    )


def test_biased_attention_equals_torchs_own():
    """Whose float mask has every row alive."""
    bias = np.where(np.isneginf(BIAS), np.float32(-4), BIAS)
    bias[..., 1] = -np.inf

    def fused(q, k, v, bias):
        found = functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), bias)
        return found.transpose(1, 2)

    check_function(lambda q, k, v, bias: ours.attention(q, k, v, None, bias), fused, Q, KEYS, VALUES, bias)


@pytest.mark.parametrize("mask", [None, DEAD], ids=["bias", "bias and mask"])
def test_a_row_whose_keys_all_have_minus_infinity_gives_zeros_and_finite_gradients(mask):
    """The last batch row has no key by its mask, or all of its keys by -inf; half of another's by each."""
    bias = np.zeros((B, 1, 1, S), np.float32)
    bias[-1], bias[1, ..., :-2] = -np.inf, -np.inf
    q, k, v = map(jnp.asarray, (Q, KEYS, VALUES))
    dead = [B - 1] if mask is None else [1, B - 1]

    @jax.jit
    def both(*given):
        output, pull_back = jax.vjp(lambda q, k, v, bias: ours.attention(q, k, v, on(jnp.asarray, mask), bias), *given)
        return output, *pull_back(output + 1)

    output, *gradients = map(np.asarray, both(q, k, v, bias))
    assert not output[dead].any()
    assert all(np.isfinite(each).all() and not each[dead].any() for each in gradients)
    inputs = [torch.from_numpy(np.array(array)).requires_grad_() for array in (q, k, v, bias)]
    found = torch_attention(*inputs[:3], on(torch.from_numpy, mask), inputs[3])
    assert not found[dead].any()
    (found + 1).square().sum().backward()
    assert all(each.grad.isfinite().all() and not each.grad[dead].any() for each in inputs)


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
    "grouped, fused, free width": {"n_kv_heads": K, "projections": "fused", "head_dim": 5},
    "free width": {"head_dim": 8},
}
CROSS = {"cross": {}, "cross, grouped": {"n_kv_heads": K}, "cross, fused elsewhere": {"projections": "fused"}}
KDIM, VDIM = 10, 13
KEY_SOURCE, VALUE_SOURCE = noise(B, S, KDIM, seed=5), noise(B, S, VDIM, seed=6)


@functools.cache
def attention_twins(name):
    config = block_config(**(SELF | CROSS)[name])
    cross = name in CROSS
    modules = ours.MultiHeadAttention(config, cross=cross), theirs.MultiHeadAttention(config, cross=cross)
    if cross:
        return twins(*modules, X, MEMORY, padding(B, S))
    return twins(*modules, X, causal(B, T), call=lambda module, x, mask: module(x, None, mask))


@pytest.mark.first(20)
@checks
@pytest.mark.parametrize("name", [*SELF, *CROSS])
def test_multi_head_attention(name, check):
    run_check(check, *attention_twins(name))


@functools.cache
def two_source_twins():
    kinds, how = (ours.MultiHeadAttention, theirs.MultiHeadAttention), {"cross": True, "kdim": KDIM, "vdim": VDIM}
    modules = (kind(block_config(n_kv_heads=K), **how) for kind in kinds)
    inputs = X, KEY_SOURCE, VALUE_SOURCE, padding(B, S), bias_per_head(1, T, S)
    return twins(*modules, *inputs, call=lambda module, x, k, v, mask, bias: module(x, (k, v), mask, bias=bias))


@checks
def test_keys_and_values_of_two_sources_under_a_bias(check):
    run_check(check, *two_source_twins())


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
    like = to_float64(ours.MultiHeadAttention(block_config(), cross=cross))
    found = to_jax(unpacked(module.state_dict()), like, TWIN)(*map(jnp.asarray, (x, source, mask)))
    check_float64("attention", found, reference)


@pytest.mark.usefixtures("float64")
def test_equal_to_torchs_own_module_with_two_sources_and_a_float_mask():
    module = excite(nn.MultiheadAttention(D, N, kdim=KDIM, vdim=VDIM, batch_first=True), seed=1).double()
    valid = padding(B, S)[:-1, 0, 0]
    scores = np.broadcast_to(np.maximum(bias_per_head(1, T, S), -3), (B - 1, N, T, S)).astype(np.float64)
    scores = scores + np.triu(np.full((T, S), -np.inf), 5)
    x, keys, values = (array[:-1].astype(np.float64) for array in (X, KEY_SOURCE, VALUE_SOURCE))
    reference, weights = module(
        *map(torch.from_numpy, (x, keys, values)),
        key_padding_mask=torch.from_numpy(np.where(valid, 0.0, -np.inf)),
        attn_mask=torch.from_numpy(scores).flatten(0, 1),
        average_attn_weights=False,
    )
    like = to_float64(ours.MultiHeadAttention(block_config(), cross=True, kdim=KDIM, vdim=VDIM))
    attend = to_jax(module.state_dict(), like, FAMILIES["torch_attention_widths"])
    given = jnp.asarray(x), (jnp.asarray(keys), jnp.asarray(values)), jnp.asarray(valid[:, None, None])
    check_float64("attention", attend(*given, bias=jnp.asarray(scores)), reference)
    check_float64("weights", attend.weights(*given, bias=jnp.asarray(scores)), weights)
