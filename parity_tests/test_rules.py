"""Conversion: bitwise, both directions, every tensor exactly once, for weights and gradients alike."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import torch

import torch_ref.models as torch_models
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Rule, to_jax, to_torch
from jaxformer.errors import ConversionError
from jaxformer.models import GPT
from jaxformer.nn.tree import named_leaves
from jaxformer.parity.checks import same_bits
from jaxformer.parity.inputs import excite
from parity_tests.helpers import D, F, K, gpt_config

CONFIGS = {
    "separate": gpt_config(),
    "fused": gpt_config(projections="fused", n_kv_heads=K, gated=True, head_bias=True),
    "tied": gpt_config(tied=True, norm="rms", positions="none"),
}
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@pytest.fixture(scope="module")
def model():
    return excite(GPT(CONFIGS["separate"]), seed=0)


@pytest.fixture
def state(model):
    return to_torch(model, TWIN)


@configs
def test_the_names_are_torchs_names(config):
    assert set(to_torch(GPT(config), TWIN)) == set(torch_models.GPT(config).state_dict())


@configs
def test_to_torch_and_back_is_bitwise(config):
    model = excite(GPT(config), seed=1)
    back = to_jax(to_torch(model, TWIN), jax.eval_shape(lambda: model), TWIN)
    assert all(same_bits(*map(np.asarray, pair)) for pair in zip(jax.tree.leaves(back), jax.tree.leaves(model), strict=True))


@configs
def test_to_jax_and_back_is_bitwise(config):
    state = {name: tensor.numpy() for name, tensor in torch_models.GPT(config).state_dict().items()}
    back = to_torch(to_jax(state, GPT(config), TWIN), TWIN)
    assert all(same_bits(back[name], tensor) for name, tensor in state.items())


def test_special_numbers_survive(model, state):
    state["norm.bias"][:4] = [np.nan, -0.0, np.inf, 1e-45]
    assert same_bits(to_torch(to_jax(state, model, TWIN), TWIN)["norm.bias"], state["norm.bias"])


def test_every_number_has_a_place_of_its_own(model):
    first = iter(np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(model))]))
    numbered = jax.tree.map(lambda leaf: next(first) + np.arange(leaf.size).reshape(leaf.shape), model)
    found = np.concatenate([tensor.ravel() for tensor in to_torch(numbered, TWIN).values()])
    assert np.array_equal(np.sort(found), np.arange(found.size))


def test_torch_loads_it_strictly(state):
    torch_models.GPT(CONFIGS["separate"]).load_state_dict(
        {name: torch.from_numpy(array) for name, array in state.items()}, strict=True
    )


def test_a_gradient_travels_like_its_weight(model):
    gradient = jax.tree.map(lambda leaf: 2 * leaf, model)
    state = to_torch(gradient, TWIN)
    assert all(np.array_equal(state[name], 2 * weight) for name, weight in to_torch(model, TWIN).items())


def test_a_kernel_is_torchs_weight_transposed(model, state):
    kernel = named_leaves(model)["stack.blocks.feed_forward.up.kernel"]
    assert np.array_equal(state["stack.blocks.2.feed_forward.up.weight"], kernel[2].T)


def refused(state, model, family=TWIN):
    with pytest.raises(ConversionError) as error:
        to_jax(state, model, family)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing(model, state):
    del state["norm.weight"]
    assert refused(state, model) == "tensors do not match the model: 1 missing, first norm.weight"


def test_left_over(model, state):
    state["extra"] = state["norm.weight"]
    assert refused(state, model) == "tensors do not match the model: 1 left over, first extra"


def test_a_wrong_name_is_answered_with_the_nearest(model, state):
    state["norm.weights"] = state.pop("norm.weight")
    assert "first norm.weight (is it norm.weights?)" in refused(state, model)


def test_a_wrong_shape(model, state):
    state["stack.blocks.1.feed_forward.up.weight"] = np.zeros((D, F), np.float32)
    assert "stack.blocks" in refused(state, model)


def test_the_wrong_shape_of_an_unstacked_tensor(model, state):
    state["norm.weight"] = state["norm.weight"][:-1]
    assert refused(state, model) == f"norm.weight is float32[{D - 1}] as norm.scale; the model wants float32[{D}]"


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32"])
def test_a_wrong_type(model, state, dtype):
    state["norm.weight"] = state["norm.weight"].astype(dtype)
    assert refused(state, model) == f"norm.weight is {dtype}[{D}] as norm.scale; the model wants float32[{D}]"


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_the_wrong_type_of_one_layer(model, state, dtype):
    state["stack.blocks.1.attention.query.bias"] = state["stack.blocks.1.attention.query.bias"].astype(dtype)
    assert "stack.blocks.attention.query.bias" in refused(state, model)


def test_a_tensor_without_a_rule(model):
    with pytest.raises(ConversionError, match="has no rule in family twin"):
        to_torch(model, replace(TWIN, rules=TWIN.rules[:-1]))


def test_two_tensors_of_one_name(model):
    with pytest.raises(ConversionError, match="two tensors want the torch name"):
        to_torch(model, replace(TWIN, rules=(Rule("bias", "weight"), *TWIN.rules)))
