"""Whole encoders: states and the pooled one, gradients, who influences whom, and BERT itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_ref.models as torch_models
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.models import Encoder, abstract
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.pytree import map_named
from parity_tests.support.helpers import B, D, K, V, bias_per_head, checks, encoder_config, per_head, run_check, twins, usually
from torch_ref.nn import attention as torch_attention

T = 11
BERT = encoder_config(norm_position="post", embedding_norm=True, norm_epsilon=1e-12, token_types=2, pooler=True)
CONFIGS = {
    "token types, pooler, post-norm": BERT,
    "rms, grouped, free width, scaled, sinusoid": encoder_config(
        context=64,
        n_kv_heads=K,
        head_dim=5,
        norm="rms",
        gated=True,
        activation="silu",
        positions="sinusoid",
        embedding_scale=True,
    ),
    "std without biases, blocks, offset, pooler": encoder_config(
        norm="std", qkv_bias=False, output_bias=False, feed_forward_bias=False, positions="sinusoid_blocks", position_offset=3
    ),
    "fused, no positions, token types, masks and biases of each head": encoder_config(
        projections="fused", positions="none", token_types=7
    ),
    "masked_lm, embeddings of their own width": encoder_config(
        embedding_width=10, head="masked_lm", activation="relu", head_activation="gelu", norm_epsilon=1e-3
    ),
    "masked_lm, its activation": encoder_config(head="masked_lm", activation="silu", norm_bias=False, head_dense_bias=False),
    "sequence_classification, pooled": encoder_config(
        pooler=True, pooler_activation="gelu", head="sequence_classification", labels=("a", "b", "c")
    ),
    "sequence_classification, not pooled": encoder_config(head="sequence_classification", labels=("a", "b", "c")),
    "sequence_classification, the mean, transformed": encoder_config(
        head="sequence_classification", labels=("a", "b", "c"), head_pooling="mean", head_transform=True, head_dense_bias=False
    ),
    "token_classification, transformed": encoder_config(
        head="token_classification", labels=("a", "b"), head_transform=True, head_activation="relu", head_dense_bias=False
    ),
    "question_answering": encoder_config(head="question_answering"),
}


def call_per_head(model, tokens, mask, token_types, bias):
    return model(tokens, mask=mask, bias=bias, token_types=token_types)


@functools.cache
def model_twins(name):
    config = CONFIGS[name]
    inputs = adversarial_inputs(config, B, config.context, seed=2)
    models = abstract(config), torch_models.Encoder(config).eval()
    if name.endswith("of each head"):
        return twins(*models, inputs[0], per_head(B, T, T), inputs[2], bias_per_head(1, T, T), call=call_per_head)
    reference, candidate = twins(*models, *inputs, call=call_torch)
    return reference, Candidate(candidate.like, call_jax)


@pytest.mark.first(4)
@checks
@pytest.mark.parametrize("name", usually(CONFIGS, *list(CONFIGS)[:5:2], *list(CONFIGS)[6:9:2]))
def test_equal(name, check):
    run_check(check, *model_twins(name))


@pytest.fixture(scope="module")
def influence():
    """Of each place's position vector on each place's state: the gradient `T T D`, given which tokens are real."""
    model = excite(abstract(encoder_config(norm_position="post")), seed=5)
    rng = np.random.default_rng(1)
    tokens, direction = rng.integers(0, V, (1, T)).astype(np.int32), jnp.asarray(rng.standard_normal(D), jnp.float32)

    def places(table, valid):
        moved = map_named(lambda name, leaf: table if name == "embed.position.table" else leaf, model)
        return jnp.einsum("btd,d->t", call_jax(moved, jnp.asarray(tokens), valid[None], None), direction)

    jacobian = jax.jit(jax.jacrev(places))
    return lambda valid: np.asarray(jacobian(model.embed.position.table[...], jnp.asarray(valid)))


def test_every_token_has_influence_everywhere(influence):
    assert np.abs(influence(np.ones(T, bool))).max(-1).min() > 0


def test_padding_has_no_influence_at_all(influence):
    valid = np.array([place not in (0, 1, 6, T - 1) for place in range(T)])
    found = influence(valid)[valid]
    assert not found[:, ~valid].any()
    assert np.abs(found[:, valid]).max(-1).min() > 0


@pytest.fixture(scope="module")
def as_float64():
    """A BERT and its torch twin in float64, and their inputs."""
    with jax.enable_x64(True):
        model = to_float64(excite(abstract(BERT), seed=6))
        return model, load_torch(torch_models.Encoder(BERT).double(), model).eval(), adversarial_inputs(BERT, B, T, seed=7)


@pytest.mark.usefixtures("float64")
def test_attention_weights_are_those_of_the_run(as_float64, monkeypatch):
    model, twin, (tokens, valid, types) = as_float64
    used, compute = [], torch_attention.attention_weights
    mask = valid[:, None, None]
    ours = jax.jit(Encoder.attention_weights)(model, tokens, mask=mask, token_types=types)
    tokens, mask, types = map(torch.from_numpy, (tokens, mask, types))
    with torch.no_grad():
        theirs = twin.attention_weights(tokens, mask=mask, token_types=types)
        monkeypatch.setattr(
            torch_attention, "attention_weights", lambda *args, **how: used.append(compute(*args, **how)) or used[-1]
        )
        twin(tokens, mask=mask, token_types=types)
    check_float64("jax", ours, torch.stack(used))
    check_float64("torch", theirs, torch.stack(used))
    sums = np.asarray(ours.sum(-1))
    np.testing.assert_allclose(sums, np.broadcast_to(valid.any(-1)[:, None, None], sums.shape), rtol=1e-13)


@pytest.mark.usefixtures("float64")
def test_without_token_types_all_are_of_the_first(as_float64):
    model, twin, (tokens, _, types) = as_float64
    run = jax.jit(lambda model, tokens, types: model(tokens, token_types=types))
    np.testing.assert_array_equal(run(model, tokens, None), run(model, tokens, np.zeros_like(types)))
    with torch.no_grad():
        check_float64("states", run(model, tokens, None), twin(torch.from_numpy(tokens)))


@pytest.mark.usefixtures("float64")
def test_positions_can_be_given(as_float64):
    model, twin, (tokens, _, _) = as_float64
    places = np.random.default_rng(3).integers(0, T, (B, T), np.int32)
    ours = jax.jit(lambda model, tokens, places: model(tokens, positions=places))(model, tokens, places)
    with torch.no_grad():
        check_float64("states", ours, twin(torch.from_numpy(tokens), positions=torch.from_numpy(places)))
