"""Which tensor is which, found by values: any names, any order of axes, layers stacked, tensors packed; never a guess."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_ref.models
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.host import same_bits
from jaxformer.convert.layouts import find_layout, fingerprint
from jaxformer.convert.registry import FAMILIES
from jaxformer.convert.rules import Axes, Family, Part, Rule, to_jax, to_torch
from jaxformer.errors import ConversionError
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.parity.compare import compare
from jaxformer.parity.pairing.candidates import Assignment
from jaxformer.parity.pairing.modules import parameter_pairs
from jaxformer.parity.pairing.pieces import on_host
from jaxformer.parity.pairing.rules import as_family, torch_names
from jaxformer.parity.pairing.tensors import identify
from jaxformer.parity.probe import excite, probe
from jaxformer.parity.trace.torch_hooks import TorchState
from jaxformer.pytree import map_named, named_weights
from parity_tests.support.helpers import B, D, F, H, N, T, V, block_config, gpt_config, noise, seq2seq_config
from parity_tests.zoo.ports import StackOfStates, TwoStacksOfStates

CONFIGS = {
    "rolled": gpt_config(),
    "tied, fused": gpt_config(tied=True, projections="fused"),
    "encoder-decoder": seq2seq_config(source_vocab_size=21),
}


@dataclass(frozen=True)
class Matching:
    family: Family
    unmatched_jax: set[str]
    unmatched_torch: set[str]


def match(weights: dict[str, np.ndarray], tree: Any) -> Matching:
    """What equal values alone tell."""
    leaves = on_host(named_weights(tree))
    known = Assignment(on_host(weights), leaves)
    known.resolve()
    rules = known.rules()
    used = {name for rule in rules.values() for name in torch_names(rule)}
    return Matching(as_family(rules), set(leaves) - set(rules), set(weights) - used)


def complete(matching: Matching) -> Matching:
    assert not matching.unmatched_jax
    assert not matching.unmatched_torch
    return matching


def there_and_back(weights: dict[str, np.ndarray], tree: Any) -> Matching:
    """Everything is matched, and the rules give torch's weights from the tree and the tree from torch's weights."""
    found = complete(match(weights, tree))
    held = to_torch(tree, found.family)
    assert set(held) == set(weights)
    assert all(same_bits(held[name], array) for name, array in weights.items())
    back = to_jax(weights, tree, found.family)
    assert jax.tree.all(jax.tree.map(lambda ours, theirs: same_bits(np.asarray(ours), np.asarray(theirs)), back, tree))
    return found


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_rules_of_the_twin_are_found(config):
    model = excite(abstract(config), seed=0)
    found = there_and_back(to_torch(model, TWIN), model)
    assert parameter_pairs(model, found.family) == parameter_pairs(model, TWIN)


@pytest.mark.parametrize("name", ["torch_encoder", "torch_transformer"])
def test_packed_projections_are_found(name):
    config = block_config(n_layers=2)
    model = StackOfStates(config) if name == "torch_encoder" else TwoStacksOfStates(config, config)
    model = excite(model, seed=0)
    found = there_and_back(to_torch(model, FAMILIES[name]), model)
    assert parameter_pairs(model, found.family) == parameter_pairs(model, FAMILIES[name])


def test_fresh_biases_of_packed_projections_lie_beside_their_weights():
    def fresh(name: str, leaf: jax.Array) -> jax.Array:
        return jnp.zeros_like(leaf) if ".attention." in name and name.endswith("bias") else leaf

    model = map_named(fresh, excite(StackOfStates(block_config(n_layers=2)), seed=0))
    found = there_and_back(to_torch(model, FAMILIES["torch_encoder"]), model)
    assert parameter_pairs(model, found.family) == parameter_pairs(model, FAMILIES["torch_encoder"])


def test_what_is_found_serves_a_comparison():
    config = gpt_config(n_layers=2, layers="rolled")
    model = excite(abstract(config), seed=1)
    twin = load_torch(torch_ref.models.build(config), model).eval()
    ids, _ = probe(V, B, T, seed=2)
    rules = match(to_torch(model, TWIN), model).family
    report = compare(twin, model, (ids,), rules=rules, checks=("weights", "forward", "local"))
    assert report.status == "equal", str(report)
    assert "stack.blocks.1.attention.query" in {module.jax for module in report.modules}


class Layer(nn.Module):
    """A user's own, of Linen."""

    @nn.compact
    def __call__(self, x, _):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(N, out_features=D)(y, y)
        return x + nn.Dense(D, name="Down")(nn.relu(nn.Dense(F, name="Up")(nn.LayerNorm()(x)))), None


class Net(nn.Module):
    """Three layers under one scan, and a norm."""

    @nn.compact
    def __call__(self, x):
        scanned = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
        return nn.LayerNorm()(scanned(name="Layers")(x, None)[0])


def torch_weights(fresh: bool) -> dict[str, np.ndarray]:
    """Noise everywhere; or biases and gains as torch begins with them."""
    layer = torch.nn.TransformerEncoderLayer(D, N, F, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 3, torch.nn.LayerNorm(D))
    named = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    return {
        name: array if fresh and array.ndim == 1 and "linear" not in name else noise(*array.shape, seed=i)
        for i, (name, array) in enumerate(named.items())
    }


def by_hand(weights: dict[str, np.ndarray]) -> dict[str, Any]:
    """What the user's own conversion makes of torch's."""

    def layer(i: int) -> dict[str, Any]:
        w = {name.removeprefix(f"layers.{i}."): array for name, array in weights.items()}
        packed = zip(np.split(w["self_attn.in_proj_weight"], 3), np.split(w["self_attn.in_proj_bias"], 3), strict=True)
        heads = [{"kernel": kernel.T.reshape(D, N, H), "bias": bias.reshape(N, H)} for kernel, bias in packed]
        out = {"kernel": w["self_attn.out_proj.weight"].T.reshape(N, H, D), "bias": w["self_attn.out_proj.bias"]}
        return {
            "LayerNorm_0": {"scale": w["norm1.weight"], "bias": w["norm1.bias"]},
            "MultiHeadDotProductAttention_0": dict(zip(("query", "key", "value"), heads, strict=True)) | {"out": out},
            "LayerNorm_1": {"scale": w["norm2.weight"], "bias": w["norm2.bias"]},
            "Up": {"kernel": w["linear1.weight"].T, "bias": w["linear1.bias"]},
            "Down": {"kernel": w["linear2.weight"].T, "bias": w["linear2.bias"]},
        }

    layers = jax.tree.map(lambda *leaves: np.stack(leaves), *(layer(i) for i in range(3)))
    norm = {"scale": weights["norm.weight"], "bias": weights["norm.bias"]}
    return {"params": {"Layers": layers, "LayerNorm_0": norm}}


def test_linen_with_heads_apart_and_layers_scanned():
    weights = torch_weights(fresh=False)
    tree = by_hand(weights)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        like = jax.eval_shape(lambda: Net().init(jax.random.key(0), jnp.zeros((B, T, D), jnp.float32)))
    assert jax.tree.map(lambda leaf: leaf.shape, tree) == jax.tree.map(lambda leaf: leaf.shape, like)
    found = there_and_back(weights, tree).family
    rule = found.rule("params.Layers.MultiHeadDotProductAttention_0.key.kernel")
    assert rule.part == Part(1, 3)
    assert isinstance(rule.layout, Axes)
    assert dict(found.stacks) == {"params.Layers.": "{layer}."}
    pairs = parameter_pairs(tree, found)
    assert pairs["Layers.2.LayerNorm_1.scale"] == "layers.2.norm2.weight"


def test_fresh_biases_and_gains_are_matched_where_names_are_plain():
    """Zeros and ones say nothing: their siblings do, or else the order of their numbers; what heads lie apart does not."""
    weights = torch_weights(fresh=True)
    tree = by_hand(weights)
    found = match(weights, tree)
    heads = "params.Layers.MultiHeadDotProductAttention_0"
    assert found.unmatched_jax == {f"{heads}.{name}.bias" for name in ("query", "key", "value")}
    assert found.unmatched_torch == {f"layers.{i}.self_attn.in_proj_bias" for i in range(3)}
    names = {rule.jax.removeprefix("params."): rule.torch for rule in found.family.rules}
    assert names["Layers.LayerNorm_1.bias"] == tuple(f"layers.{i}.norm2.bias" for i in range(3))
    assert names["LayerNorm_0.scale"] == "norm.weight"
    assert names[f"{heads}.out.bias".removeprefix("params.")] == tuple(f"layers.{i}.self_attn.out_proj.bias" for i in range(3))


def test_fresh_norms_of_other_names_are_listed():
    weights = {f"{i}.{norm}.weight": np.ones(D, np.float32) for i in range(2) for norm in ("norm1", "norm2")}
    weights |= {f"{i}.linear.weight": noise(F, D, seed=i) for i in range(2)}
    tree = {
        f"layer{i}": {
            "before": {"scale": np.ones(D, np.float32)},
            "after": {"scale": np.ones(D, np.float32)},
            "up": {"kernel": weights[f"{i}.linear.weight"].T},
        }
        for i in range(2)
    }
    found = match(weights, tree)
    assert len(found.unmatched_jax) == len(found.unmatched_torch) == 4
    assert len(found.family.rules) == 2


def test_constants_of_which_one_side_has_more_are_listed():
    weights = {"a.norm.weight": np.ones(D, np.float32), "b.norm.weight": np.ones(D, np.float32)}
    found = match(weights, {"a": {"norm": {"scale": np.ones(D, np.float32)}}})
    assert found.unmatched_jax == {"a.norm.scale"}
    assert found.unmatched_torch == set(weights)


def test_what_names_tell_is_used_for_their_neighbours():
    """The two kernels are the same, so their names tell; then the bias is the one beside torch's."""
    kernel, zeros = noise(D, D), np.zeros(D, np.float32)
    weights = {"m.weight": kernel.T, "n.weight": kernel.T, "m.offset": zeros, "n.offset": zeros}
    found = match(weights, {"m": {"kernel": kernel, "shift": zeros}, "n": {"kernel": kernel}})
    assert found.family.rule("m.shift").torch == "m.offset"
    assert found.unmatched_torch == {"n.offset"}


def test_gpt2s_projections_are_cut_along_the_last_axis():
    packed = {"attn.c_attn.weight": noise(D, 3 * D), "attn.c_attn.bias": noise(3 * D, seed=1)}
    kernels, biases = (np.split(array, 3, -1) for array in packed.values())
    tree = {name: {"kernel": kernels[i], "bias": biases[i]} for i, name in enumerate("qkv")}
    found = there_and_back(packed, tree).family
    assert found.rule("v.kernel").part == Part(2, 3, 1)


def test_layers_that_torch_numbers_otherwise():
    """The first one apart, the rest stacked."""
    weights = {f"h.{i}.weight": noise(F, D, seed=i) for i in range(4)}
    rest = np.stack([weights[f"h.{i}.weight"].T for i in (1, 2, 3)])
    tree = {"first": {"kernel": weights["h.0.weight"].T}, "rest": {"kernel": rest}}
    assert there_and_back(weights, tree).family.rule("rest.kernel").torch == ("h.1.weight", "h.2.weight", "h.3.weight")


def test_tied_weights_go_by_name():
    table = noise(V, D)
    weights = {"wte.weight": table, "lm_head.weight": table}
    both = there_and_back(weights, {"lm_head": {"kernel": table.T}, "wte": {"embedding": table}}).family
    assert both.rule("lm_head.kernel").torch == "lm_head.weight"
    one = match(weights, {"wte": {"embedding": table}})
    assert one.family.rule("wte.embedding").torch == "wte.weight"
    assert one.unmatched_torch == {"lm_head.weight"}


LEAVES = (Rule("kernel", "weight", "transposed"), Rule("bias", "bias"))


def test_what_rules_leave_over_is_matched_by_values():
    """One name has no rule; another has one that leads nowhere; a stack lies beside layers that the rules stack."""
    kernels = np.stack([noise(D, F, seed=i) for i in range(2)])
    extra = np.stack([noise(F, seed=i) for i in (3, 4)])
    tree = {"h": {"up": {"kernel": kernels}, "gain": extra}, "head": {"kernel": noise(D, V)}, "shift": noise(V, seed=5)}
    rules = Family("mine", {"h.": "layers.{layer}."}, LEAVES)
    weights = {f"layers.{i}.up.weight": kernels[i].T for i in range(2)}
    weights |= {f"layers.{i}.scale": extra[i] for i in range(2)}
    weights |= {"out.weight": tree["head"]["kernel"].T, "out.offset": tree["shift"]}
    held = to_torch(tree, identify(TorchState(weights), tree, rules).family)
    assert set(held) == set(weights)
    assert all(same_bits(held[name], array) for name, array in weights.items())


def test_what_places_leave_over_too_is_refused_with_the_nearest_name():
    tree = {"a": {"kernel": noise(D, F)}, "b": {"kernel": noise(D, F, seed=1)}, "c": {"kernel": noise(D, F, seed=2)}}
    weights = {name: tree[own]["kernel"].T for name, own in (("a.weight", "a"), ("other.weight", "b"), ("cc.weight", "c"))}
    weights["cc.weight"] = np.append(weights["cc.weight"], weights["cc.weight"], 0)
    with pytest.raises(ConversionError, match=r"1 missing, first c.weight \(is it cc.weight\?\); 1 left over"):
        to_jax(weights, tree, identify(TorchState(weights), tree, Family("mine", {}, LEAVES)).family)


def test_a_match_never_overrules_a_rule():
    """Were it the first rule, `gain` would be found for `norm.gain` too."""
    tree = {"gain": noise(D), "norm": {"gain": noise(D, seed=1)}}
    weights = {"g": tree["gain"], "norm.weight": tree["norm"]["gain"]}
    rules = Family("mine", {}, (Rule("norm.gain", "norm.weight"),))
    assert identify(TorchState(weights), tree, rules).family == rules


def test_one_bit_less_is_no_match():
    model = excite(abstract(gpt_config()), seed=0)
    weights = to_torch(model, TWIN)
    wrong = map_named(lambda name, leaf: leaf.at[0].set(-0.0) if name == "norm.bias" else leaf, model)
    weights["norm.bias"][0] = 0.0
    found = match(weights, wrong)
    assert found.unmatched_jax == found.unmatched_torch == {"norm.bias"}
    with pytest.raises(ConversionError, match=r"norm\.bias"):
        to_torch(wrong, found.family)


def test_a_name_may_begin_as_that_of_a_stack_does():
    weights = {f"experts.{i}.up.weight": noise(F, D, seed=i) for i in range(3)}
    weights |= {"router.weight": noise(3, D, seed=3), "router.bias": noise(3, seed=4)}
    stacked = np.stack([weights[f"experts.{i}.up.weight"] for i in range(3)])
    there_and_back(weights, {"moe": {"w": stacked, "w_router": weights["router.weight"].T, "wb": weights["router.bias"]}})


def test_a_layer_that_is_another_unmatches_all():
    model = excite(abstract(gpt_config()), seed=0)
    name = "stack.blocks.feed_forward.up.kernel"
    wrong = map_named(lambda own, leaf: leaf.at[1].multiply(2) if own == name else leaf, model)
    found = match(to_torch(model, TWIN), wrong)
    assert found.unmatched_jax == {name}
    assert found.unmatched_torch == {f"stack.blocks.{i}.feed_forward.up.weight" for i in range(3)}


def test_a_part_that_is_another_unmatches_the_packed_tensor():
    packed = {"in_proj_weight": noise(3 * D, D)}
    q, k, v = np.split(packed["in_proj_weight"], 3)
    found = match(packed, {"q": q.T, "k": k.T, "v": 2 * v.T})
    assert found.unmatched_jax == {"q", "k", "v"}
    assert found.unmatched_torch == {"in_proj_weight"}


def test_fingerprints_see_bits_and_not_their_order():
    array = np.array([[0.0, 0.0, np.nan], [0.0, -0.0, 1e-45], [1, -0.0, -0.0]], np.float32)
    assert fingerprint(array) == fingerprint(array.T) == fingerprint(array[::-1, ::-1])
    assert fingerprint(array) != fingerprint(np.abs(array))
    assert fingerprint(array).dtype != fingerprint(array.astype(np.float64)).dtype
    assert [fingerprint(one).constant for one in (array, array[:1, :1], np.ones((2, 3)))] == [False, True, True]


def test_layouts():
    theirs = noise(4, 5, 6)
    assert find_layout(theirs, theirs) == "same"
    assert find_layout(theirs[0], theirs[0].T) == "transposed"
    for ours in (theirs.transpose(2, 0, 1), theirs.reshape(20, 6), theirs.reshape(2, 2, 5, 6).transpose(0, 2, 3, 1)):
        layout = find_layout(theirs, ours)
        assert isinstance(layout, Axes)
        assert same_bits(layout.to_jax(theirs), np.ascontiguousarray(ours))
        assert same_bits(np.ascontiguousarray(layout.to_torch(ours)), theirs)
    assert find_layout(theirs, np.roll(theirs, 1)) is None
    assert find_layout(theirs[:, 0, :4] + theirs[:, 0, :4].T, theirs[:, 0, :4] + theirs[:, 0, :4].T) is None  # or its transpose


def test_a_kernel_that_runs_backwards():
    """As that of flax's ConvTranspose; along one axis alone it is another."""
    theirs = noise(4, 5, 3, 3)
    ours = theirs.transpose(2, 3, 0, 1)[::-1, ::-1]
    layout = find_layout(theirs, ours)
    assert isinstance(layout, Axes)
    assert same_bits(np.ascontiguousarray(layout.to_jax(theirs)), np.ascontiguousarray(ours))
    assert same_bits(np.ascontiguousarray(layout.to_torch(ours)), theirs)
    assert find_layout(theirs, ours[::-1]) is None
