"""Whole models: logits, gradients, who influences whom, and the cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_ref.models as torch_models
from jaxformer.config.configuration import FixedTable
from jaxformer.config.presets import preset
from jaxformer.evaluation.ladder import call_jax, call_torch, load_torch
from jaxformer.models import abstract
from jaxformer.nn.cache import empty_cache
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite, probe
from jaxformer.pytree import map_named
from parity_tests.support.helpers import (
    B,
    D,
    K,
    V,
    bias_per_head,
    check_held,
    checks,
    gpt_config,
    noise,
    run_check,
    twins,
    usually,
)
from torch_ref.nn.cache import empty_cache as torch_cache

RICH = gpt_config(
    n_kv_heads=K,
    head_dim=5,
    norm="rms",
    activation="gelu_tanh",
    positions="sinusoid",
    embedding_scale=True,
    tied=True,
    layers="rolled",
)
CONFIGS = {
    "qa": preset("qa"),
    "gpt.tiny": preset("gpt.tiny"),
    "gpt.cpu": preset("gpt.cpu"),
    "rich": RICH,
    "no bias in norms, scaled logits, padding id, given positions": gpt_config(
        norm_bias=False,
        activation="quick_gelu",
        tied=True,
        head_bias=True,
        logits_scale=D**-0.5,
        padding_idx=0,
        positions=FixedTable(noise(12, D)),
        position_offset=1,
        layers="rolled",
    ),
    "gated, no positions, biases of each head": gpt_config(
        gated=True, activation="silu", positions="none", norm="std", stack_norm=False, layers="rolled"
    ),
}
"""gpt.cpu sees 64 tokens, so that mistakes in positions grow visible."""


def call_per_head(model, tokens, mask, bias):
    return model(tokens, mask=mask, bias=bias)


@functools.cache
def gpt_twins(name):
    config = CONFIGS[name]
    inputs = probe(config.vocab_size, B, config.context, seed=2)
    if name.endswith("of each head"):
        arrays = inputs[0], inputs[1][:, None, None], bias_per_head(1, config.context, config.context)
        return twins(abstract(config), torch_models.GPT(config).eval(), *arrays, call=call_per_head)
    reference, candidate = twins(abstract(config), torch_models.GPT(config).eval(), *inputs, call=call_torch)
    return reference, type(candidate)(candidate.like, call_jax)


@pytest.mark.first(12)
@checks
@pytest.mark.parametrize("name", usually(CONFIGS, *list(CONFIGS)[2:]))
def test_equal(name, check):
    run_check(check, *gpt_twins(name))


@pytest.fixture(scope="module")
def influence():
    """Of each place's position vector on each place's logits: the gradient `T T D`, given which tokens are real."""
    model = excite(abstract(gpt_config(norm_position="post", layers="rolled")), seed=5)
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, V, (1, 11)).astype(np.int32)
    direction = jnp.asarray(rng.standard_normal(V), jnp.float32)

    def places(table, valid):
        moved = map_named(lambda name, leaf: table if name == "embed.position.table" else leaf, model)
        return jnp.einsum("btv,v->t", call_jax(moved, jnp.asarray(tokens), valid[None]), direction)

    jacobian = jax.jit(jax.jacrev(places))
    return lambda valid: np.asarray(jacobian(model.embed.position.table[...], jnp.asarray(valid)))


EVERYWHERE = np.ones(11, bool)


def test_the_future_has_no_influence_at_all(influence):
    assert not influence(EVERYWHERE)[np.triu_indices(11, 1)].any()


def test_everything_up_to_now_has_influence(influence):
    assert np.abs(influence(EVERYWHERE)).max(-1)[np.tril_indices(11)].min() > 0


def test_padding_has_no_influence_at_all(influence):
    valid = np.array([place not in (0, 1, 6, 10) for place in range(11)])
    assert not influence(valid)[np.ix_(valid, ~valid)].any()


@pytest.fixture(scope="module")
def cached():
    """A model with left padding, its torch twin in float64, and the twin's logits without a cache."""
    with jax.enable_x64(True):
        config = gpt_config(n_kv_heads=K, layers="rolled")
        model = to_float64(excite(abstract(config), seed=6))
        twin = load_torch(torch_models.GPT(config).double(), model).eval()
        tokens, valid = probe(V, B, config.context, seed=7)
        with torch.no_grad():
            return model, twin, tokens, valid, call_torch(twin, torch.from_numpy(tokens), torch.from_numpy(valid))


PIECES = {"prefix and one by one": (8, 1, 1, 1), "pieces": (4, 2, 4, 1), "at once": (11,)}
CAPACITY = 13


def mask_of(valid):
    """The padding mask over all places of the cache."""
    return np.pad(valid, ((0, 0), (0, CAPACITY - valid.shape[1])), constant_values=True)[:, None, None]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_cached_equals_uncached(cached, pieces):
    model, _, tokens, valid, reference = cached
    extend = jax.jit(lambda model, piece, cache, mask: model.extend(piece, cache, mask=mask))
    cache, logits = empty_cache(model, B, CAPACITY), []
    for piece in np.split(tokens, np.cumsum(pieces)[:-1], 1):
        found, cache = extend(model, piece, cache, jnp.asarray(mask_of(valid)))
        logits.append(found)
    check_float64("logits", jnp.concatenate(logits, 1), reference)


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_torchs_cached_equals_its_uncached(cached, pieces):
    _, twin, tokens, valid, reference = cached
    cache, logits = torch_cache(twin, B, CAPACITY), []
    with torch.no_grad():
        for piece in np.split(tokens, np.cumsum(pieces)[:-1], 1):
            found, cache = twin.extend(torch.from_numpy(piece), cache, mask=torch.from_numpy(mask_of(valid)))
            logits.append(found)
    check_float64("logits", torch.cat(logits, 1), reference)


@pytest.mark.usefixtures("float64")
def test_the_cache_holds_the_same_keys_and_values(cached):
    model, twin, tokens, _, _ = cached
    _, ours = model.extend(tokens, empty_cache(model, B, CAPACITY))
    with torch.no_grad():
        _, theirs = twin.extend(torch.from_numpy(tokens), torch_cache(twin, B, CAPACITY))
    for mine, other in zip(ours.layers, theirs.layers, strict=True):
        check_held(mine, other)
    assert int(ours.length) == theirs.length == 11
