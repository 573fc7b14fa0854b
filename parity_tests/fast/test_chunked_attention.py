"""Attention in parts of a batch is attention: values, gradients, masks, dropout, and the memory that it is for."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jaxformer.nn.attention as ours
import torch_ref.nn.attention as theirs
from jaxformer.config.models import GPTConfig
from jaxformer.models import abstract
from jaxformer.nn import chunked_attention
from jaxformer.parity.numerics.metrics import check_float64
from parity_tests.support.helpers import noise, padding

B, T, S, N, K, H = 6, 5, 7, 4, 2, 3
Q, KEYS, VALUES = noise(B, T, N, H), noise(B, S, K, H, seed=1), noise(B, S, K, H, seed=2)
MASKS = {
    "none": None,
    "one a head": noise(B, N, T, S, seed=6) > 0,
    "one a sequence": padding(B, S),
    "one for all": noise(1, 1, T, S, seed=3) > 0,
}
BIASES = {"none": None, "one a sequence": noise(B, N, T, S, seed=4), "one for all": noise(1, N, T, S, seed=5)}


@pytest.fixture(params=[0.5, 1, 3], ids=["two heads", "a sequence", "three sequences"])
def few(request, monkeypatch):
    """That much at a time."""
    monkeypatch.setattr(chunked_attention, "MOST_SCORES", N * T * S)
    monkeypatch.setattr(chunked_attention, "AT_ONCE", int(request.param * N * T * S))


@pytest.mark.first(3)
@pytest.mark.usefixtures("few", "float64")
@pytest.mark.parametrize(
    ("mask", "bias"), [*((mask, "none") for mask in MASKS), ("one for all", "one a sequence"), ("none", "one for all")]
)
def test_values_and_gradients_are_torchs(mask, bias):
    arrays = [it.astype(np.float64) for it in (Q, KEYS, VALUES)] + ([] if bias == "none" else [BIASES[bias].astype(np.float64)])
    cotangent = noise(B, T, N, H, seed=9).astype(np.float64)
    tensors = [torch.from_numpy(it).requires_grad_() for it in arrays]
    allowed = None if MASKS[mask] is None else torch.from_numpy(MASKS[mask])
    wanted = theirs.weighted_values(theirs.attention_weights(*tensors[:2], allowed, *tensors[3:]), tensors[2])
    (wanted * torch.from_numpy(cotangent)).sum().backward()

    def total(q, k, v, *bias):
        allowed = None if MASKS[mask] is None else jnp.asarray(MASKS[mask])
        found = ours.attention(q, k, v, allowed, *bias)
        return (found * cotangent).sum(), found

    program = jax.jit(jax.grad(total, tuple(range(len(arrays))), has_aux=True))
    gradients, found = program(*map(jnp.asarray, arrays))
    assert "while" in program.lower(*arrays).as_text()
    check_float64("values", found, wanted)
    for name, gradient, tensor in zip(("queries", "keys", "values", "bias"), gradients, tensors, strict=False):
        check_float64(f"gradient of {name}", gradient, tensor.grad, "gradient")


@pytest.mark.usefixtures("few")
def test_every_part_drops_other_weights():
    """All sequences are the same, and so are all rows."""
    same = jnp.zeros((B, T, N, S)), jnp.zeros((B, S, N, S)), jnp.broadcast_to(jnp.eye(S)[None, :, None], (B, S, N, S))
    found = np.asarray(ours.attention(*same, dropout_rate=0.5, rng=jax.random.key(0)))
    assert set(np.unique(found.round(5))) == {0, np.float32(2 / S).round(5)}
    assert len({row.tobytes() for sequence in found for row in sequence.reshape(-1, S)}) > B * T * N / 2
    assert len({sequence.tobytes() for sequence in found}) == B


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("at_once", [1, 4 * N * T * S])
def test_a_batch_that_does_not_divide_is_taken_one_by_one(monkeypatch, at_once):
    monkeypatch.setattr(chunked_attention, "MOST_SCORES", 1)
    monkeypatch.setattr(chunked_attention, "AT_ONCE", at_once)
    q, k, v = (jnp.asarray(it[:5].astype(np.float64)) for it in (Q, KEYS, VALUES))
    whole = ours.weighted_values(ours.attention_weights(q, k), v)
    check_float64("values", ours.attention(q, k, v), whole)


@pytest.mark.slow
def test_gradients_in_bfloat16_keep_their_digits_where_rows_see_one_key_alone(monkeypatch):
    q, k, v, cotangent = (jnp.asarray(noise(1, 48, N, H, seed=seed), jnp.bfloat16) for seed in range(4))

    def gradients(most):
        monkeypatch.setattr(chunked_attention, "MOST_SCORES", most)
        monkeypatch.setattr(chunked_attention, "AT_ONCE", most)
        program = jax.grad(lambda *qkv: (ours.attention(*qkv) * cotangent).astype(jnp.float32).sum(), (0, 1, 2))
        return [np.asarray(each, np.float32) for each in program(100 * q, k, v)]

    for chunked, plain in zip(gradients(48 * 48), gradients(2**40), strict=True):
        assert np.linalg.norm(chunked - plain) <= 0.02 * np.linalg.norm(plain)


@pytest.mark.usefixtures("few")
def test_other_platforms_attend_at_once():
    traced = jax.jit(ours.attention).trace(*map(jnp.asarray, (Q, KEYS, VALUES)))
    loops = {platform: "while" in traced.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda", "tpu")}
    assert loops == {"cpu": True, "cuda": False, "tpu": False}


LENGTH = 7
"""No multiple of the number of blocks."""
LATER = {
    "nothing else": np.tril(np.ones((1, 1, LENGTH, LENGTH), bool)),
    "padding too": np.tril(np.ones((1, 1, LENGTH, LENGTH), bool)) & padding(B, LENGTH),
    "one a head": np.tril(noise(B, N, LENGTH, LENGTH, seed=6) > -1),
}
ADDED = {"none": None, "of all": noise(1, N, LENGTH, LENGTH, seed=4), "of keys": noise(B, N, 1, LENGTH, seed=5)}
SCORINGS = {
    "usual": ours.USUAL_SCORING,
    "capped": ours.Scoring(scale=0.7, softcap=2.0),
    "sinks": ours.Scoring(sinks=ours.Sinks(N)),
}


@pytest.fixture
def blocks(monkeypatch):
    monkeypatch.setattr(chunked_attention, "LEAST_SCORES", 1)


def own_tokens(seed=20):
    """Queries, keys and values of the same tokens."""
    shapes = ((B, LENGTH, N, H), (B, LENGTH, K, H), (B, LENGTH, K, H))
    return [jnp.asarray(noise(*shape, seed=seed + i).astype(np.float64)) for i, shape in enumerate(shapes)]


@pytest.mark.first(4)
@pytest.mark.usefixtures("blocks", "float64")
@pytest.mark.parametrize("at_once", [2**40, N * LENGTH**2], ids=["all", "a sequence"])
@pytest.mark.parametrize("bias", ADDED)
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("mask", LATER)
def test_blocks_of_queries_are_attention(monkeypatch, mask, scoring, bias, at_once):
    """Values and gradients, to rounding: every row has all of its keys."""
    monkeypatch.setattr(chunked_attention, "MOST_SCORES", at_once)
    monkeypatch.setattr(chunked_attention, "AT_ONCE", at_once)
    cotangent, allowed = noise(B, LENGTH, N, H, seed=9).astype(np.float64), jnp.asarray(LATER[mask])
    added = ADDED[bias]
    given = [*own_tokens(), *([] if added is None else [jnp.asarray(added.astype(np.float64))])]

    def results(causal):
        def total(q, k, v, *bias):
            found = ours.attention(q, k, v, allowed, *bias, scoring=SCORINGS[scoring], causal=causal)
            return (found * cotangent).sum(), found

        return jax.jit(jax.grad(total, tuple(range(len(given))), has_aux=True))(*given)

    (gradients, found), (plain, wanted) = results(causal=True), results(causal=False)
    assert float(jnp.linalg.norm(found - wanted)) < 1e-15 * float(jnp.linalg.norm(wanted))
    for gradient, other in zip(gradients, plain, strict=True):
        assert float(jnp.linalg.norm(gradient - other)) < 2e-15 * float(jnp.linalg.norm(other))


@pytest.mark.slow
@pytest.mark.usefixtures("blocks", "float64")
@pytest.mark.parametrize("causal", [False, True])
def test_parts_have_the_sinks_of_their_heads(monkeypatch, causal):
    cotangent = noise(B, LENGTH, N, H, seed=9).astype(np.float64)

    def total(logits, q, k, v):
        sinks = ours.Sinks(N)
        sinks.bias = nnx.Param(logits)
        return (ours.attention(q, k, v, scoring=ours.Scoring(sinks=sinks), causal=causal) * cotangent).sum()

    given = jnp.asarray(noise(N, seed=7).astype(np.float64)), *own_tokens()
    at_once = jax.grad(total, (0, 1, 2, 3))(*given)
    for limit in ("MOST_SCORES", "AT_ONCE"):
        monkeypatch.setattr(chunked_attention, limit, 1)
    for gradient, other in zip(jax.grad(total, (0, 1, 2, 3))(*given), at_once, strict=True):
        assert float(jnp.linalg.norm(gradient - other)) < 2e-15 * float(jnp.linalg.norm(other))


@pytest.mark.slow
@pytest.mark.usefixtures("blocks", "float64")
def test_later_keys_are_hidden_whatever_the_mask_says():
    q, k, v = own_tokens()
    wanted = ours.attention(q, k, v, jnp.asarray(LATER["nothing else"]))
    for mask in (None, jnp.ones((1, 1, LENGTH, LENGTH), bool)):
        check_float64("values", ours.attention(q, k, v, mask, causal=True), wanted)
    check_float64("of the last query", ours.attention(q[:, -1:], k, v, causal=True), wanted[:, -1:])


@pytest.mark.slow
@pytest.mark.usefixtures("blocks")
def test_every_block_drops_other_weights():
    causal = jnp.asarray(np.tril(np.ones((1, 1, 8, 8), bool)))
    same = jnp.zeros((1, 8, 1, 8)), jnp.zeros((1, 8, 1, 8)), jnp.eye(8)[None, :, None]
    found = np.asarray(ours.attention(*same, causal, dropout_rate=0.5, rng=jax.random.key(1), causal=True))[0, :, 0]
    kept = found > 0
    np.testing.assert_allclose(found[kept], (2 / np.arange(1, 9)[:, None] * np.ones((8, 8)))[kept], rtol=1e-6)
    assert not kept[np.triu_indices(8, 1)].any()
    assert len({row[:2].tobytes() for row in kept[1::2]}) > 1


@pytest.mark.usefixtures("blocks")
def test_a_model_has_no_scores_of_later_tokens():
    """The largest score matrix that is computed on a CPU has a quarter of the queries."""
    tokens = jnp.zeros((2, 16), jnp.int32)
    lowered = jax.jit(lambda model, tokens: model(tokens)).trace(abstract(LONG), tokens)
    cpu, cuda = (lowered.lower(lowering_platforms=(platform,)).as_text() for platform in ("cpu", "cuda"))
    assert "2x4x1x16x16xf32" in cuda
    assert "2x4x1x16x16xf32" not in cpu
    assert "2x4x1x4x16xf32" in cpu


LONG = GPTConfig(vocab_size=11, context=512, d_model=16, n_layers=2, n_heads=4, d_ff=32)


def bytes_of_a_step(config):
    tokens = jax.ShapeDtypeStruct((12, config.context), jnp.int32)
    step = jax.jit(jax.grad(lambda model, tokens: model(tokens).sum()))
    return step.lower(abstract(config), tokens).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_scores_are_not_kept_for_the_backward_pass(monkeypatch):
    scores = 4 * 12 * 4 * 512 * 512
    few = bytes_of_a_step(LONG)
    jax.clear_caches()
    monkeypatch.setattr(chunked_attention, "MOST_SCORES", 2**40)
    assert few < scores < bytes_of_a_step(LONG) / 2


@pytest.mark.slow
def test_a_rematerialised_stack_keeps_one_layers_activations():
    deep = replace(LONG, context=64, n_layers=8, d_ff=256)
    assert bytes_of_a_step(replace(deep, remat=True)) < bytes_of_a_step(deep) / 3
