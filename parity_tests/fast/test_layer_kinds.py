"""Layers that are not as the others: the runs that they make, what a cache holds of them, and what cannot be."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import torch_ref.models
from jaxformer.config.layer_kinds import runs_of
from jaxformer.errors import ConfigError, InputError
from jaxformer.models import GPT
from jaxformer.nn.cache import empty_cache
from jaxformer.pytree import n_bytes
from parity_tests.support.helpers import D, N, V, encoder_config, gpt_config
from torch_ref.nn.cache import empty_cache as torch_cache

PATTERN = {"positions": "none", "window": 3, "layer_pattern": ("window", "window", "full")}
SHARED = PATTERN | {"n_layers": 6, "n_kv_heads": 2, "full_head_dim": 10, "shared_kv_layers": 3, "shared_kv_d_ff": 9}


def test_runs_of_layers_alike():
    runs = runs_of(gpt_config(**SHARED))
    assert [(it.config.n_layers, it.config.window, it.config.head_width, it.reads) for it in runs] == [
        (2, 3, 6, None),
        (1, None, 10, None),
        (2, 3, 6, 0),
        (1, None, 10, 1),
    ]
    assert [it.sharing for it in runs] == ["gives", "gives", "takes", "takes"]
    assert [it.config.d_ff for it in runs] == [20, 20, 9, 9]
    (alike,) = runs_of(gpt_config(**PATTERN))
    assert alike.config.layer_pattern == PATTERN["layer_pattern"]


def test_layers_that_share_keys_hold_no_cache():
    config = gpt_config(**SHARED)
    assert n_bytes(empty_cache(config, 5, 7).layers) == 4 * 2 * 2 * 5 * 7 * (2 * 6 + 10)
    for cache in (empty_cache(config, 5, 7), torch_cache(config, 5, 7)):
        assert [tuple(it.keys.shape) for it in cache.layers] == [(10, 7, 6)] * 2 + [(10, 7, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["jax", "torch"])
def test_what_a_layer_reads_is_asked_for_and_another_models_cache_is_refused(side):
    config, other = (gpt_config(**SHARED, layer_embedding=width) for width in (4, 0))
    ids, x = np.zeros((1, 2), np.int32), np.zeros((1, 2, D), np.float32)
    if side == "jax":
        models, array, empty = [GPT(it, rngs=nnx.Rngs(0)) for it in (config, other)], jnp.asarray, empty_cache
    else:
        models, array, empty = [torch_ref.models.build(it) for it in (config, other)], torch.from_numpy, torch_cache
    with pytest.raises(InputError, match="reads embeddings of its own; call the model"):
        models[0].stack[0](array(x))
    with pytest.raises(InputError, match="reads the keys and values of an earlier one; call the stack"):
        models[1].stack[-1](array(x))
    with pytest.raises(InputError, match="the cache is made for 4 layers, the stack has 3"):
        models[1].extend(array(ids), empty(gpt_config(**SHARED | {"shared_kv_layers": 2}), 1, 4))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"full_head_dim": 8}, "full_head_dim = 8 is of layers that see all keys among others with a window"),
        (PATTERN | {"full_kv_heads": 3}, "n_kv_heads = 3 does not divide n_heads = 4"),
        (PATTERN | {"full_value_projection": False, "projections": "fused"}, "value_projection = False needs projections"),
        (PATTERN | {"full_head_dim": 8, "rotary": "half", "rotary_dim": 4}, "rotary_dim = 4 has no place in layers of two"),
        ({"shared_kv_layers": 3}, "shared_kv_layers = 3 leaves 0 of n_layers = 3"),
        (PATTERN | {"shared_kv_layers": 1}, "none of one kind of layer"),
        ({"shared_kv_layers": 1, "n_experts": 2}, "n_experts = 2 has no place in layers that share keys and values"),
        ({"shared_kv_layers": 1, "shared_layers": True}, "shared_layers = True makes one block of all layers"),
        ({"shared_kv_d_ff": 9}, "shared_kv_d_ff = 9 is not read with shared_kv_layers = 0"),
        ({"rotary": "half", "rotary_pairs": 2}, "rotary_pairs = 2 is not read with rotary_scaling = 'none'"),
        (
            {"rotary": "half", "rotary_scaling": "proportional", "rotary_factor": 1.0, "rotary_pairs": D // N},
            "rotary_pairs = 6 are more than the 3 pairs of a head",
        ),
        ({"n_experts": 2, "norm_position": "sandwich", "expert_norms": True}, "expert_norms = True needs shared_d_ff"),
        ({"n_experts": 2, "shared_d_ff": 4, "expert_norms": True}, "expert_norms = True needs norm_position = 'sandwich'"),
    ],
)
def test_what_cannot_be_is_refused(fields, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        gpt_config(**fields)


def test_an_encoder_has_no_embeddings_of_layers():
    with pytest.raises(ConfigError, match="layer_embedding = 4 is for a GPT"):
        encoder_config(layer_embedding=4, vocab_size=V)
