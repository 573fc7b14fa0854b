"""Conversion: bitwise, both directions, every tensor exactly once, for weights and gradients alike."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_ref.models as torch_models
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.host import same_bits
from jaxformer.convert.registry import FAMILIES
from jaxformer.convert.rules import Axes, Family, Part, Rule, gradients_to_torch, to_jax, to_torch
from jaxformer.errors import ConversionError
from jaxformer.models import abstract
from jaxformer.parity.pairing.modules import pair_modules, parameter_pairs
from jaxformer.parity.probe import excite
from jaxformer.pytree import named_leaves
from parity_tests.support.helpers import D, F, H, K, N, V, block_config, gpt_config, noise
from parity_tests.zoo.ports import StackOfStates, TwoStacksOfStates

CONFIGS = {
    "separate": gpt_config(),
    "fused": gpt_config(projections="fused", n_kv_heads=K, gated=True, head_bias=True),
    "tied": gpt_config(tied=True, norm="rms", positions="none"),
}
configs = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@pytest.fixture(scope="module")
def model():
    return excite(abstract(CONFIGS["separate"]), seed=0)


@pytest.fixture
def state(model):
    return to_torch(model, TWIN)


@configs
def test_the_names_are_torchs_names(config):
    assert set(to_torch(excite(abstract(config), seed=0), TWIN)) == set(torch_models.GPT(config).state_dict())


@configs
def test_to_torch_and_back_is_bitwise(config):
    model = excite(abstract(config), seed=1)
    back = to_jax(to_torch(model, TWIN), jax.eval_shape(lambda: model), TWIN)
    assert all(same_bits(*map(np.asarray, pair)) for pair in zip(jax.tree.leaves(back), jax.tree.leaves(model), strict=True))


@configs
def test_to_jax_and_back_is_bitwise(config):
    state = {name: tensor.numpy() for name, tensor in torch_models.GPT(config).state_dict().items()}
    back = to_torch(to_jax(state, abstract(config), TWIN), TWIN)
    assert all(same_bits(back[name], tensor) for name, tensor in state.items())


def test_special_numbers_survive(model, state):
    state["norm.bias"][:4] = [np.nan, -0.0, np.inf, 1e-45]
    assert same_bits(to_torch(to_jax(state, model, TWIN), TWIN)["norm.bias"], state["norm.bias"])


def test_every_number_has_a_place_of_its_own(model):
    first = iter(np.cumsum([0, *(leaf.size for leaf in jax.tree.leaves(model))]))
    numbered = jax.tree.map(lambda leaf: next(first) + np.arange(leaf.size, dtype=np.float64).reshape(leaf.shape), model)
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
    state["extra"] = state["norm.weight"] + 1
    said = "if the JAX model needs none of it, add ignored={'extra': 'why'} to the family"
    assert refused(state, model) == f"tensors do not match the model: 1 left over, first extra; {said}"


def test_a_wrong_name_is_answered_with_the_nearest(model, state):
    state["norm.weights"] = state.pop("norm.weight")
    assert "first norm.weight (is it norm.weights?)" in refused(state, model)


def test_three_of_many_are_listed_with_the_nearest(model, state):
    for name in [name for name in state if name.startswith("stack.blocks.1.feed_forward.")]:
        state[name.replace("feed_forward", "mlp")] = state.pop(name)
    up, down = "stack.blocks.1.feed_forward.up", "stack.blocks.1.feed_forward.down"
    near = [
        f"{name} (is it {name.replace('feed_forward', 'mlp')}?)" for name in (f"{down}.bias", f"{down}.weight", f"{up}.bias")
    ]
    assert f"4 missing, first {', '.join(near)}; 4 left over, first " in refused(state, model)
    assert f"{up}.weight" not in refused(state, model)


def test_a_wrong_shape(model, state):
    state["stack.blocks.1.feed_forward.up.weight"] = np.zeros((D, F), np.float32)
    assert "stack.blocks" in refused(state, model)


def test_the_wrong_shape_of_an_unstacked_tensor(model, state):
    state["norm.weight"] = state["norm.weight"][:-1]
    assert refused(state, model) == f"norm.weight is float32[{D - 1}] as norm.scale; the model wants float32[{D}]"


REMEDIES = {
    "float64": ": give it as tensor.to(torch.float32), which rounds it",
    "float16": ": give it as tensor.to(torch.float32), which loses nothing",
    "bfloat16": ": give it as tensor.to(torch.float32), which loses nothing",
    "int32": "",
}


@pytest.mark.parametrize("dtype", REMEDIES)
def test_a_wrong_type(model, state, dtype):
    state["norm.weight"] = torch.from_numpy(state["norm.weight"]).to(getattr(torch, dtype))
    said = f"norm.weight is {dtype}[{D}] as norm.scale; the model wants float32[{D}]{REMEDIES[dtype]}"
    assert refused(state, model) == said


def test_bfloat16_stays_what_it_is(model):
    narrow = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model)
    state = {name: torch.from_numpy(array.astype(np.float32)).bfloat16() for name, array in to_torch(narrow, TWIN).items()}
    back = to_jax(state, narrow, TWIN)
    assert all(same_bits(*map(np.asarray, pair)) for pair in zip(jax.tree.leaves(back), jax.tree.leaves(narrow), strict=True))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_the_wrong_type_of_one_layer(model, state, dtype):
    state["stack.blocks.1.attention.query.bias"] = state["stack.blocks.1.attention.query.bias"].astype(dtype)
    assert "stack.blocks.attention.query.bias" in refused(state, model)


def test_a_tensor_without_a_rule(model):
    said = r"norm\.bias, stack\.blocks\.attention\.key\.bias, stack.* and 6 more of the GPT have no rule in family twin"
    with pytest.raises(ConversionError, match=said):
        to_torch(model, replace(TWIN, rules=tuple(rule for rule in TWIN.rules if rule.jax != "bias")))


def test_two_tensors_of_one_name(model):
    with pytest.raises(ConversionError, match="two tensors want the torch name"):
        to_torch(model, replace(TWIN, rules=(Rule("bias", "weight"), *TWIN.rules)))


def packed_model(projections: str = "separate") -> StackOfStates:
    return excite(StackOfStates(block_config(projections=projections)), seed=0)


PACKED = FAMILIES["torch_encoder"]


def test_parts_lie_in_torchs_tensor_one_behind_the_other():
    model = packed_model()
    state, leaves = to_torch(model, PACKED), named_leaves(model)
    kernels = [leaves[f"stack.blocks.attention.{name}.kernel"][1].T for name in ("query", "key", "value")]
    assert np.array_equal(state["layers.1.self_attn.in_proj_weight"], np.concatenate(kernels))
    back = to_jax(state, jax.eval_shape(lambda: model), PACKED)
    assert all(same_bits(*map(np.asarray, pair)) for pair in zip(jax.tree.leaves(back), jax.tree.leaves(model), strict=True))


def test_parts_and_the_whole_are_the_same_tensor():
    fused = to_jax(to_torch(packed_model(), PACKED), packed_model("fused"), PACKED)
    kernels = [packed_model().stack.blocks.attention, fused.stack.blocks.attention]
    whole = np.concatenate([kernels[0].query.kernel[...], kernels[0].key.kernel[...], kernels[0].value.kernel[...]], -1)
    assert np.array_equal(whole, kernels[1].qkv.kernel[...])


def test_a_part_is_missing():
    model = packed_model()
    model.stack.blocks.attention.key.bias = None
    with pytest.raises(ConversionError) as error:
        to_torch(model, PACKED)
    said = "layers.0.self_attn.in_proj_bias holds 3 parts; the model has 2 of them, first stack.blocks.attention.query.bias"
    assert str(error.value) == said
    assert refused(to_torch(packed_model(), PACKED), model, PACKED) == said


def test_a_part_is_wanted_twice():
    twice = Rule("attention.key.bias", "self_attn.in_proj_bias", part=Part(0, 3))
    with pytest.raises(ConversionError, match=r"two tensors want the torch name layers\.0\.self_attn\.in_proj_bias"):
        to_torch(packed_model(), replace(PACKED, rules=(twice, *PACKED.rules)))


def test_a_packed_tensor_that_cannot_be_cut():
    model, name = packed_model(), "layers.0.self_attn.in_proj_bias"
    state = to_torch(model, PACKED)
    state[name] = state[name][:-1]
    assert refused(state, model, PACKED).startswith(f"{name} is float32[{3 * D - 1}]; stack.blocks.attention.")
    state[name] = state[name][: 3 * D - 3]
    assert refused(state, model, PACKED).endswith(f"the model wants float32[{D}]")


def test_a_start_without_a_layer_is_only_another_name():
    """The longest start that fits counts."""
    stacks = {"": "transformer.", "h.": "transformer.layers.{layer}.", "head.": "head."}
    family = Family("own", stacks, (Rule("kernel", "weight", "transposed"),))
    tree = {"wte": {"kernel": noise(D, F)}, "h": {"up": {"kernel": noise(2, D, F)}}, "head": {"kernel": noise(F, D)}}
    state = to_torch(tree, family)
    names = ["head.weight", "transformer.layers.0.up.weight", "transformer.layers.1.up.weight", "transformer.wte.weight"]
    assert sorted(state) == names
    back = to_jax(state, tree, family)
    assert all(same_bits(*map(np.asarray, pair)) for pair in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True))
    assert parameter_pairs(tree, family)["h.1.up.kernel"] == "transformer.layers.1.up.weight"


def test_constants_stay_and_what_torch_ties_is_used_by_each_copy():
    family = Family(
        "own", {}, (Rule("kernel", "weight", "transposed"),), constants=frozenset({"mask"}), tied={"head.weight": "wte.weight"}
    )
    tree = {"wte": {"kernel": noise(D, V)}, "head": {"kernel": noise(D, V, seed=1)}, "mask": noise(V)}
    state = {"wte.weight": noise(V, D, seed=2)}
    back = to_jax(state, tree, family)
    assert same_bits(np.asarray(back["mask"]), tree["mask"])
    assert all(same_bits(np.asarray(back[name]["kernel"]), state["wte.weight"].T) for name in ("wte", "head"))
    total = gradients_to_torch(tree, family, state)
    assert list(total) == ["wte.weight"]
    assert np.array_equal(total["wte.weight"], (tree["wte"]["kernel"] + tree["head"]["kernel"]).T)


def test_axes_and_layers_of_any_name():
    rule = Rule("q.kernel", ("a.weight", "b.weight"), Axes((D, D), (N, H, D), (2, 0, 1), (D, N, H)))
    family = Family("own", {"q.": "{layer}."}, (rule,))
    state = {"a.weight": noise(D, D), "b.weight": noise(D, D, seed=1)}
    like = {"q": {"kernel": jax.ShapeDtypeStruct((2, D, N, H), np.float32)}}
    tree = to_jax(state, like, family)
    assert np.array_equal(tree["q"]["kernel"][1], state["b.weight"].T.reshape(D, N, H))
    assert all(same_bits(array, state[name]) for name, array in to_torch(tree, family).items())
    assert "q.kernel has 3 layers; family own has 2" in refused(
        state, {"q": {"kernel": jax.ShapeDtypeStruct((3, D, N, H), np.float32)}}, family
    )
    state["a.weight"] = state["a.weight"].reshape(H, -1)
    assert "cannot be made of it: shape [6, 96], not [24, 24]" in refused(state, like, family)


@pytest.mark.parametrize("name", ["torch_encoder", "torch_transformer"])
def test_torchs_own_names(name):
    config = block_config(n_layers=2)
    layer = torch.nn.TransformerEncoderLayer(D, N, F, batch_first=True)
    model, theirs = {
        "torch_encoder": (StackOfStates(config), torch.nn.TransformerEncoder(layer, 2, torch.nn.LayerNorm(D))),
        "torch_transformer": (TwoStacksOfStates(config, config), torch.nn.Transformer(D, N, 2, 2, F, batch_first=True)),
    }[name]
    shapes = {name: array.shape for name, array in to_torch(model, FAMILIES[name]).items()}
    assert shapes == {name: tuple(tensor.shape) for name, tensor in theirs.state_dict().items()}


def test_a_module_that_holds_a_part_is_not_the_module_that_holds_all():
    model = packed_model()
    pairs = parameter_pairs(model, PACKED)
    paths = ["stack.blocks.0.attention", "stack.blocks.0.attention.query", "stack.blocks.0.attention.out"]
    theirs = ["layers.0.self_attn", "layers.0.self_attn.out_proj"]
    assert pair_modules(paths, theirs, pairs) == {paths[0]: theirs[0], paths[2]: theirs[1]}
    alone = {"query.kernel": "packed.weight", "key.kernel": "packed.weight"}
    assert pair_modules(["", "query", "key"], ["", "packed"], alone) == {"": ""}


def test_a_module_with_parameters_of_its_own_is_paired_with_one_that_has_them():
    pairs = {"up.kernel": "intermediate.dense.weight"}
    theirs = ["intermediate", "intermediate.dense"]
    assert pair_modules(["up"], theirs, pairs) == {"up": "intermediate.dense"}
    assert pair_modules(["around", "around.up"], theirs, {"around.up.kernel": pairs["up.kernel"]}) == {
        "around": "intermediate",
        "around.up": "intermediate.dense",
    }


@pytest.mark.parametrize("called", ["stage.layers", "stage.layers.0"])
def test_a_list_of_layers_that_one_side_calls_shifts_no_other_pair(called):
    """With one layer in it, all of them hold the same."""
    pairs = {f"stage.layers.0.layer.{i}.kernel": f"stage.layers.0.layer.{i}.weight" for i in range(2)}
    paths = ["stage", "stage.layers", "stage.layers.0", "stage.layers.0.layer"]
    fewer = [path for path in paths if path != called]
    assert pair_modules(paths, fewer, pairs) == {path: path for path in fewer}
    assert pair_modules(fewer, paths, pairs) == {path: path for path in fewer}
