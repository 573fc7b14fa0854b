import functools

import numpy as np
import pytest

from jaxformer.nn.embeddings import InputEmbedding
from jaxformer.parity.inputs import hostile_tokens
from parity_tests.helpers import B, T, V, checks, gpt_config, run_check, twins
from torch_ref.nn.embeddings import InputEmbedding as TorchInputEmbedding

IDS, _ = hostile_tokens(V, B, T, seed=0)
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
@pytest.mark.parametrize("positions", ["learned", "sinusoid", "none"])
def test_input_embedding(positions, scale, check):
    run_check(check, *embedding_twins(positions, scale, "one row"))


@checks
@pytest.mark.parametrize("positions", ["learned", "sinusoid"])
def test_positions_of_each_row(positions, check):
    run_check(check, *embedding_twins(positions, True, "each its own"))
