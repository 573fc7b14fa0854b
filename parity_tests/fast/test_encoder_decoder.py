"""Whole models from source and target to logits: gradients, who influences whom, attention weights, and the cache."""

import functools
from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_ref.models as torch_models
from jaxformer.config.configuration import FixedTable
from jaxformer.config.presets import preset
from jaxformer.decoding import translate
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.models import EncoderDecoder, abstract
from jaxformer.nn.cache import empty_cache
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from jaxformer.parity.runs.load_weights import Candidate
from jaxformer.pytree import map_named
from parity_tests.support.helpers import (
    B,
    D,
    K,
    V,
    bias_per_head,
    check_held,
    checks,
    noise,
    per_head,
    run_check,
    seq2seq_config,
    twins,
    usually,
)
from torch_ref.decoding.translation import translate as torch_translate
from torch_ref.nn import attention as torch_attention
from torch_ref.nn.cache import empty_cache as torch_cache

SOURCE_V = 29
S, T = 17, 14
LONGER = "a longer source with a table of its own, no bias in norms, scaled logits, padding id"
CONFIGS = {
    "reverse": replace(preset("reverse"), layers="rolled"),
    "shared": replace(preset("shared"), layers="rolled"),
    "shared table, tied, biased head, embedding norm, offset": seq2seq_config(
        context=67, norm_position="post", embedding_norm=True, position_offset=2, tied=True, head_bias=True
    ),
    "sinusoid in blocks, scaled, shared table": seq2seq_config(
        norm_position="post",
        stack_norm=True,
        positions="sinusoid_blocks",
        position_offset=1,
        embedding_scale=True,
        activation="silu",
    ),
    "grouped, free width, gated, no positions, tied to the target": seq2seq_config(
        source_vocab_size=SOURCE_V,
        n_decoder_layers=7,
        n_kv_heads=K,
        head_dim=5,
        norm="rms",
        gated=True,
        activation="silu",
        positions="none",
        tied=True,
    ),
    LONGER: seq2seq_config(
        source_vocab_size=SOURCE_V,
        source_context=23,
        source_positions=FixedTable(noise(25, D)),
        position_offset=2,
        norm="std",
        norm_bias=False,
        embedding_norm=True,
        activation="tanh",
        tied=True,
        logits_scale=D**-0.5,
        padding_idx=0,
    ),
    "fused, as deep as the encoder, biased head, masks and biases of each head": seq2seq_config(
        source_vocab_size=SOURCE_V, n_decoder_layers=None, projections="fused", embedding_norm=True, head_bias=True
    ),
}
"""The third sees 67 source and 64 target tokens, so that mistakes in positions grow visible."""


def call_per_head(model, source, target, source_mask, target_mask, *biases):
    names = ("source_bias", "target_bias", "memory_bias")
    return model(source, target, source_mask=source_mask, target_mask=target_mask, **dict(zip(names, biases, strict=True)))


@functools.cache
def model_twins(name):
    config = CONFIGS[name]
    inputs = adversarial_inputs(config, B, config.source.context, seed=2)
    models = abstract(config), torch_models.EncoderDecoder(config).eval()
    if name.endswith("of each head"):
        biases = bias_per_head(1, S, S), bias_per_head(B, T, T), bias_per_head(1, T, S)
        return twins(*models, inputs[0], inputs[2], per_head(B, 1, S), per_head(B, T, T), *biases, call=call_per_head)
    reference, candidate = twins(*models, *inputs, call=call_torch)
    return reference, Candidate(candidate.like, call_jax)


@pytest.mark.first(4)
@checks
@pytest.mark.parametrize("name", usually(CONFIGS, list(CONFIGS)[2], LONGER))
def test_equal(name, check):
    run_check(check, *model_twins(name))


@pytest.mark.slow
def test_a_source_longer_than_the_target_can_be_is_translated():
    reference, candidate = model_twins(LONGER)
    source = reference.inputs[0]
    assert source.shape == (B, 23)
    twin = load_torch(torch_models.EncoderDecoder(CONFIGS[LONGER]), candidate.model(reference)).eval()
    ours = translate(candidate.model(reference), source, 5, start=1, eos=2)
    theirs = torch_translate(twin, torch.from_numpy(source), 5, start=1, eos=2)
    assert np.array_equal(ours, theirs)


@pytest.fixture(scope="module")
def influence():
    """Of position vectors on each target place's logits: the gradients `T T D` of the target's places and `T S D` of the
    source's, given which tokens of both are real."""
    model = excite(abstract(seq2seq_config(norm_position="post")), seed=5)
    rng = np.random.default_rng(1)
    source, target = (rng.integers(0, V, (1, length)).astype(np.int32) for length in (S, T))
    direction = jnp.asarray(rng.standard_normal(V), jnp.float32)

    def places(target_table, source_table, source_valid, target_valid):
        tables = {"embed.position.table": target_table, "source_embed.position.table": source_table}
        moved = map_named(lambda name, leaf: tables.get(name, leaf), model)
        logits = call_jax(moved, jnp.asarray(source), source_valid[None], jnp.asarray(target), target_valid[None])
        return jnp.einsum("btv,v->t", logits, direction)

    jacobian = jax.jit(jax.jacrev(places, (0, 1)))
    tables = model.embed.position.table[...], model.source_embed.position.table[...]

    def found(source_valid, target_valid):
        of_target, of_source = jacobian(*tables, jnp.asarray(source_valid), jnp.asarray(target_valid))
        return np.asarray(of_target)[:, :T], np.asarray(of_source)

    return found


ALL_OF_SOURCE, ALL_OF_TARGET = np.ones(S, bool), np.ones(T, bool)


@pytest.mark.slow
def test_the_future_has_no_influence_at_all(influence):
    assert not influence(ALL_OF_SOURCE, ALL_OF_TARGET)[0][np.triu_indices(T, 1)].any()


@pytest.mark.slow
def test_everything_up_to_now_has_influence(influence):
    assert np.abs(influence(ALL_OF_SOURCE, ALL_OF_TARGET)[0]).max(-1)[np.tril_indices(T)].min() > 0


@pytest.mark.slow
def test_every_source_token_has_influence_everywhere(influence):
    assert np.abs(influence(ALL_OF_SOURCE, ALL_OF_TARGET)[1]).max(-1).min() > 0


def test_source_padding_has_no_influence_at_all(influence):
    valid = np.array([place not in (0, 1, 6, S - 1) for place in range(S)])
    of_source = influence(valid, ALL_OF_TARGET)[1]
    assert not of_source[:, ~valid].any()
    assert np.abs(of_source[:, valid]).max(-1).min() > 0


def test_target_padding_has_no_influence_at_all(influence):
    valid = np.array([place not in (0, 1, 6, T - 1) for place in range(T)])
    assert not influence(ALL_OF_SOURCE, valid)[0][np.ix_(valid, ~valid)].any()


@pytest.fixture(scope="module")
def as_float64():
    """A model and its torch twin in float64, their inputs, and the twin's logits without a cache."""
    with jax.enable_x64(True):
        config = seq2seq_config(n_kv_heads=K, embedding_norm=True, position_offset=2, head_bias=True)
        model = to_float64(excite(abstract(config), seed=6))
        twin = load_torch(torch_models.EncoderDecoder(config).double(), model).eval()
        inputs = adversarial_inputs(config, B, config.context, seed=7)
        with torch.no_grad():
            return model, twin, inputs, call_torch(twin, *map(torch.from_numpy, inputs))


PIECES = {"prefix and one by one": (11, 1, 1, 1), "pieces": (1, 11, 1, 1), "at once": (T,)}
CAPACITY = 16
pieces = pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
remembered = pytest.mark.parametrize("remembered", [False, True], ids=["states", "remembered"])


def masks_of(source_valid, target_valid):
    """The padding mask over all places of the cache, and the memory's."""
    room = CAPACITY - target_valid.shape[1]
    return {
        "mask": np.pad(target_valid, ((0, 0), (0, room)), constant_values=True)[:, None, None],
        "memory_mask": source_valid[:, None, None],
    }


@functools.cache
def compiled(method):
    return jax.jit(method)


@pytest.mark.first(3)
@pytest.mark.usefixtures("float64")
@pieces
@remembered
def test_cached_equals_uncached(as_float64, pieces, remembered):
    model, _, (source, source_valid, target, target_valid), reference = as_float64
    masks = masks_of(source_valid, target_valid)
    memory = compiled(EncoderDecoder.encode)(model, source, mask=masks["memory_mask"])
    memory = compiled(EncoderDecoder.remember)(model, memory) if remembered else memory
    cache, logits = empty_cache(model, B, CAPACITY), []
    for piece in np.split(target, np.cumsum(pieces)[:-1], 1):
        found, cache = compiled(EncoderDecoder.extend)(model, piece, cache, memory, **masks)
        logits.append(found)
    check_float64("logits", jnp.concatenate(logits, 1), reference)


@pieces
@remembered
def test_torchs_cached_equals_its_uncached(as_float64, pieces, remembered):
    _, twin, (source, source_valid, target, target_valid), reference = as_float64
    masks = {name: torch.from_numpy(mask) for name, mask in masks_of(source_valid, target_valid).items()}
    cache, logits = torch_cache(twin, B, CAPACITY), []
    with torch.no_grad():
        memory = twin.encode(torch.from_numpy(source), mask=masks["memory_mask"])
        memory = twin.remember(memory) if remembered else memory
        for piece in np.split(target, np.cumsum(pieces)[:-1], 1):
            found, cache = twin.extend(torch.from_numpy(piece), cache, memory, **masks)
            logits.append(found)
    check_float64("logits", torch.cat(logits, 1), reference)


@pytest.mark.usefixtures("float64")
def test_the_remembered_keys_and_values_are_the_same(as_float64):
    model, twin, (source, *_), _ = as_float64
    ours = compiled(EncoderDecoder.remember)(model, compiled(EncoderDecoder.encode)(model, source))
    with torch.no_grad():
        theirs = twin.remember(twin.encode(torch.from_numpy(source)))
    check_held(ours, theirs)


@pytest.fixture(scope="module")
def attended(as_float64):
    """The attention weights that torch used on the way to its logits: the encoder's, the decoder's own, and across."""
    _, twin, inputs, _ = as_float64
    found, compute = [], torch_attention.attention_weights

    def recording(*args, **how):
        found.append(compute(*args, **how))
        return found[-1]

    with torch.no_grad(), mock.patch.object(torch_attention, "attention_weights", recording):
        call_torch(twin, *map(torch.from_numpy, inputs))
    depth = len(twin.encoder)
    return tuple(map(torch.stack, (found[:depth], found[depth::2], found[depth + 1 :: 2])))


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_attention_weights_are_those_of_the_run(as_float64, attended):
    model, twin, (source, source_valid, target, target_valid), _ = as_float64
    keywords = {"source_mask": source_valid[:, None, None], "target_mask": target_valid[:, None, None]}
    ours = compiled(EncoderDecoder.attention_weights)(model, source, target, **keywords)
    with torch.no_grad():
        theirs = twin.attention_weights(
            *map(torch.from_numpy, (source, target)), **{name: torch.from_numpy(mask) for name, mask in keywords.items()}
        )
    for name, reference in zip(ours._fields, attended, strict=True):
        check_float64(f"jax, {name}", getattr(ours, name), reference)
        check_float64(f"torch, {name}", getattr(theirs, name), reference)


def test_attention_weights_sum_to_one_or_to_nothing(as_float64, attended):
    _, _, (_, source_valid, _, target_valid), _ = as_float64
    causal = np.tril(np.ones((T, T), bool))
    reachable = source_valid.any(-1)[:, None, None], (causal & target_valid[:, None]).any(-1)[:, None], None
    for weights, alive in zip(attended, (*reachable[:2], reachable[0]), strict=True):
        sums = np.asarray(weights).sum(-1)
        np.testing.assert_allclose(sums, np.broadcast_to(alive, sums.shape), rtol=1e-13)
