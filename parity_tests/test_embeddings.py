import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from torch import nn

from jaxformer.nn.embeddings import Embedding, InputEmbedding
from jaxformer.parity.inputs import excite, probe
from parity_tests.helpers import B, D, T, V, checks, gpt_config, run_check, twins
from torch_ref.nn.embeddings import Embedding as TorchEmbedding
from torch_ref.nn.embeddings import InputEmbedding as TorchInputEmbedding

IDS, _ = probe(V, B, T, seed=0)
PLACES = {
    "one row": np.arange(T, dtype=np.int32)[None] + 2,
    "each its own": (np.arange(B * T, dtype=np.int32) % 11).reshape(B, T),
}


@functools.cache
def embedding_twins(positions, scale, places):
    config = gpt_config(positions=positions, embedding_scale=scale)
    return twins(InputEmbedding(config, V), TorchInputEmbedding(config, V), IDS, PLACES[places])


@checks
@pytest.mark.parametrize("scale", [False, True], ids=["as it is", "scaled"])
@pytest.mark.parametrize("positions", ["learned", "sinusoid", "sinusoid_blocks", "none"])
def test_input_embedding(positions, scale, check):
    run_check(check, *embedding_twins(positions, scale, "one row"))


@checks
@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_positions_of_each_row(positions, check):
    run_check(check, *embedding_twins(positions, True, "each its own"))


RICH = gpt_config(position_offset=3, embedding_norm=True, embedding_scale=True)


def with_types(embed, ids, positions, types):
    return embed(ids, positions, token_types=types)


@checks
def test_token_types_norm_and_offset(check):
    run_check(check, *typed_twins())


@functools.cache
def typed_twins():
    types = np.random.default_rng(1).integers(0, 6, (B, T), np.int32)
    models = InputEmbedding(RICH, V, token_types=6), TorchInputEmbedding(RICH, V, token_types=6)
    return twins(*models, IDS, PLACES["each its own"], types, call=with_types)


def with_shared(modules, ids, positions):
    return modules["embed"](ids, positions, token=modules["token"])


@checks
def test_a_shared_table(check):
    run_check(check, *shared_twins())


@functools.cache
def shared_twins():
    ours = {"embed": InputEmbedding(RICH, None), "token": Embedding(V, D)}
    theirs = nn.ModuleDict({"embed": TorchInputEmbedding(RICH, None), "token": TorchEmbedding(V, D)})
    return twins(ours, theirs, IDS, PLACES["one row"], call=with_shared)


@pytest.mark.parametrize("positions", ["learned", "sinusoid", "sinusoid_blocks"])
def test_an_offset_moves_every_token(positions):
    """The last place of the context has a row of its own behind the offset, in every kind of table."""
    config = gpt_config(positions=positions, position_offset=3)
    moved = excite(InputEmbedding(config, V), seed=1)
    plain = InputEmbedding(replace(config, position_offset=0, context=config.context + 3), V)
    same = jax.tree.unflatten(jax.tree.structure(plain), jax.tree.leaves(moved))
    places = np.arange(config.context, dtype=np.int32)[None]
    ids = np.zeros_like(places)
    found = moved(jnp.asarray(ids), jnp.asarray(places))
    np.testing.assert_array_equal(found, same(jnp.asarray(ids), jnp.asarray(places + 3)))
    assert np.isfinite(found).all()
