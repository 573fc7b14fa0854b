import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

from jaxformer.config.configuration import FixedTable
from jaxformer.nn.embeddings import Embedding, InputEmbedding
from jaxformer.parity.probe import excite, probe
from jaxformer.parity.training.shared_dropout import feed_masks, with_masks
from parity_tests.support.helpers import B, D, T, V, checks, gpt_config, run_check, twins
from torch_ref.nn.embeddings import Embedding as TorchEmbedding
from torch_ref.nn.embeddings import InputEmbedding as TorchInputEmbedding

KEY = jax.random.key(5)
IDS, _ = probe(V, B, T, seed=0)
GIVEN = FixedTable(np.random.default_rng(6).standard_normal((14, D)))
"""Float64, and longer than the context."""
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
@pytest.mark.parametrize("positions", ["learned", "sinusoid", "sinusoid_blocks", "none", GIVEN], ids=str)
def test_input_embedding(positions, scale, check):
    run_check(check, *embedding_twins(positions, scale, "one row"))


@checks
@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_positions_of_each_row(positions, check):
    run_check(check, *embedding_twins(positions, True, "each its own"))


@checks
@pytest.mark.parametrize("positions", ["sinusoid", "sinusoid_blocks"])
def test_an_odd_width(positions, check):
    run_check(check, *odd_twins(positions))


@functools.cache
def odd_twins(positions):
    config = gpt_config(d_model=15, n_heads=3, positions=positions)
    return twins(InputEmbedding(config, V), TorchInputEmbedding(config, V), IDS, PLACES["one row"])


PAD = 0
"""Stands in every row of the ids, inside of the text too."""


def tied_to_padding(modules, ids):
    return modules["token"].decode(modules["token"].encode(ids))


@functools.cache
def padding_twins(tied):
    config = gpt_config(padding_idx=PAD)
    if not tied:
        return twins(InputEmbedding(config, V), TorchInputEmbedding(config, V), IDS, PLACES["one row"])
    ours, theirs = {"token": Embedding(V, D, PAD)}, nn.ModuleDict({"token": TorchEmbedding(V, D, PAD)})
    return twins(ours, theirs, IDS, call=tied_to_padding)


@checks
@pytest.mark.parametrize("tied", [False, True], ids=["looked up", "tied"])
def test_a_padding_id(tied, check):
    run_check(check, *padding_twins(tied))


@pytest.mark.parametrize("tied", [False, True], ids=["looked up", "tied"])
def test_torch_gives_the_padding_row_a_gradient_from_a_tied_head_alone(tied):
    """So the check of the gradients above is one of that row."""
    reference, _ = padding_twins(tied)
    assert (IDS == PAD).any(1).all()
    assert reference.gradients["token.weight"][PAD].any() == tied


def test_a_given_table_is_no_tensor_of_either_side():
    reference, candidate = embedding_twins(GIVEN, False, "one row")
    assert set(reference.weights) == {"token.weight"}
    assert len(jax.tree.leaves(candidate.like)) == 1


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


LONGEST = gpt_config(context=5000, embedding_dropout=0.3)
EVERY_PLACE = np.arange(5000, dtype=np.int32)[None]
LONG_IDS = np.random.default_rng(2).integers(0, V, (2, 5000), np.int32)
long_tables = pytest.mark.parametrize("positions", ["learned", "sinusoid"])


@checks
@long_tables
def test_a_table_of_5000_positions_with_the_same_units_dropped(positions, check):
    run_check(check, *long_twins(positions))


@functools.cache
def long_twins(positions):
    config = replace(LONGEST, positions=positions)
    ours, theirs = InputEmbedding(config, V), TorchInputEmbedding(config, V).train()
    draw = with_masks(lambda model, *arrays: model(*arrays, key=KEY))
    _, masks = draw(excite(ours, seed=3), jnp.asarray(LONG_IDS), jnp.asarray(EVERY_PLACE))

    def call(model, *arrays):
        if isinstance(model, InputEmbedding):
            return model(*arrays, key=KEY)
        with feed_masks(masks):
            return model(*arrays)

    return twins(ours, theirs, LONG_IDS, EVERY_PLACE, call=call)


@long_tables
@pytest.mark.parametrize(("token", "place"), [(V, 0), (0, 5000)], ids=["token", "position"])
def test_what_no_table_holds(positions, token, place):
    """A row of NaN, and torch's IndexError; the rows around it are as they are."""
    config = replace(LONGEST, positions=positions)
    ids, places = np.array([[1, token, 2]], np.int32), np.array([[4999, place, 3]], np.int32)
    rows = excite(InputEmbedding(config, V), seed=1)(jnp.asarray(ids), jnp.asarray(places))
    assert np.isnan(rows[0, 1]).all()
    assert np.isfinite(rows[0, ::2]).all()
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        TorchInputEmbedding(config, V)(torch.from_numpy(ids), torch.from_numpy(places))


@pytest.mark.parametrize("positions", ["learned", "sinusoid", "sinusoid_blocks", GIVEN], ids=str)
def test_an_offset_moves_every_token(positions):
    """The last place of the context has a row of its own after the offset, in every kind of table."""
    config = gpt_config(positions=positions, position_offset=3)
    moved = excite(InputEmbedding(config, V), seed=1)
    plain = InputEmbedding(replace(config, position_offset=0, context=config.context + 3), V)
    same = jax.tree.unflatten(jax.tree.structure(plain), jax.tree.leaves(moved))
    places = np.arange(config.context, dtype=np.int32)[None]
    ids = np.zeros_like(places)
    found = moved(jnp.asarray(ids), jnp.asarray(places))
    np.testing.assert_array_equal(found, same(jnp.asarray(ids), jnp.asarray(places + 3)))
    assert np.isfinite(found).all()
