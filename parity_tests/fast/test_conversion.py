"""What a family may say beyond names: ties, ignored tensors, joined ones, axes by name; and what a refusal says to do."""

from dataclasses import replace

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.host import same_bits
from jaxformer.convert.registry import FAMILIES
from jaxformer.convert.rules import (
    Family,
    Join,
    Part,
    Rule,
    gradients_to_torch,
    module_rules,
    projection_rules,
    to_jax,
    to_torch,
)
from jaxformer.errors import ConversionError
from jaxformer.evaluation.ladder import load_torch
from jaxformer.models import abstract
from jaxformer.nn.stack import Stack
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import B, D, F, H, N, T, V, block_config, gpt_config, noise

TWO = Family("own", {}, module_rules("wte", "wte"), tied={"head.weight": "wte.weight", "again.weight": "wte.weight"})


def same(one, other) -> bool:
    return all(same_bits(*map(np.asarray, pair)) for pair in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))


def there_and_back(tree, family) -> dict[str, np.ndarray]:
    """torch's tensors, of which the tree comes back."""
    state = to_torch(tree, family)
    assert same(to_jax(state, tree, family), tree)
    return state


def refused(state, like, family) -> str:
    with pytest.raises(ConversionError) as error:
        to_jax(state, like, family)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_torch_ties_is_written_under_all_its_names_and_read_under_any():
    tree = {"wte": {"table": noise(V, D)}}
    state = there_and_back(tree, TWO)
    assert sorted(state) == ["again.weight", "head.weight", "wte.weight"]
    assert all(same_bits(array, tree["wte"]["table"]) for array in state.values())
    for name in state:
        assert same(to_jax({name: state[name]}, tree, TWO), tree)
    assert all(list(gradients_to_torch(tree, TWO, {name})) == [name] for name in state)


def test_the_jax_model_does_not_follow_torch():
    table = torch.ones(V, D)
    found = to_jax({"wte.weight": table}, {"wte": {"table": noise(V, D)}}, TWO)
    table.zero_()
    assert np.all(np.asarray(found["wte"]["table"]) == 1)


def test_what_torch_ties_has_to_be_the_same():
    tree = {"wte": {"table": noise(V, D)}}
    state = to_torch(tree, TWO)
    state["head.weight"] = state["head.weight"] + np.eye(V, D, dtype=np.float32)
    said = f"head.weight and wte.weight are tied in family own, and differ: {V} of {V * D} numbers, by 1.0e+00 at most"
    assert refused(state, tree, TWO).startswith(said)
    state["head.weight"] = state["head.weight"][1:]
    assert f"differ: float32[{V - 1}, {D}] and float32[{V}, {D}]" in refused(state, tree, TWO)


def test_two_of_ours_may_differ_where_torch_ties_nothing():
    family = replace(TWO, rules=(*TWO.rules, *module_rules("head", "head")))
    tree = {"wte": {"table": noise(V, D)}, "head": {"table": noise(V, D, seed=1)}}
    state = there_and_back(tree, family)
    assert not np.array_equal(state["head.weight"], state["wte.weight"])
    grown = gradients_to_torch(tree, family, {"wte.weight", "head.weight"})
    assert np.array_equal(grown["wte.weight"], tree["wte"]["table"])
    grown = gradients_to_torch(tree, family, {"head.weight", "again.weight"})
    assert sorted(grown) == ["again.weight", "head.weight"]
    assert np.array_equal(grown["again.weight"], tree["wte"]["table"])


def test_a_torch_model_that_ties_takes_no_two():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.head = torch.nn.Embedding(V, D), torch.nn.Linear(D, V, bias=False)
            self.head.weight = self.wte.weight

    family = Family("own", {}, (*module_rules("wte", "wte"), *module_rules("head", "head")))
    tree = {"wte": {"table": noise(V, D)}, "head": {"kernel": noise(D, V, seed=1)}}
    with pytest.raises(ConversionError, match=r"^head\.weight and wte\.weight are one tensor in torch, and two that differ"):
        load_torch(Tied(), tree, family)
    load_torch(Tied(), {"wte": tree["wte"], "head": {"kernel": tree["wte"]["table"].T}}, family)


IGNORING = Family(
    "own",
    {"blocks.": "h.{layer}."},
    module_rules("up", "up"),
    ignored={"h.{layer}.mask": "the causal mask", "steps": "a count", "cls.*": "the head of pre-training"},
)
STACKED = {"blocks": {"up": {"kernel": noise(2, D, F)}}}
REST = {"h.0.mask": np.ones((1, T)), "h.1.mask": np.ones((1, T)), "a.steps": np.array(3), "cls.a.weight": noise(D)}


def test_ignored_tensors_are_read_over_and_written_as_they_are():
    state = to_torch(STACKED, IGNORING)
    assert sorted(state) == ["h.0.up.weight", "h.1.up.weight"]
    whole = state | REST
    assert same(to_jax(whole, STACKED, IGNORING), STACKED)
    written = to_torch(STACKED, IGNORING, like=whole)
    assert list(written) == list(whole)
    assert all(same_bits(written[name], array) for name, array in whole.items())


@pytest.mark.parametrize("name", ["h.mask", "h.0.mask.more", "h.0.causal_mask", "own_cls.a"])
def test_only_what_a_pattern_means_is_ignored(name):
    assert "1 left over" in refused(to_torch(STACKED, IGNORING) | {name: noise(D)}, STACKED, IGNORING)


def test_what_is_ignored_and_held():
    family = replace(IGNORING, ignored={"up.weight": "frozen"})
    said = (
        "family own ignores h.0.up.weight (frozen), and the JAX model holds it as blocks.up.kernel; take it out of one of them"
    )
    assert refused(to_torch(STACKED, IGNORING), STACKED, family) == said
    with pytest.raises(ConversionError, match="ignores"):
        to_torch(STACKED, family)


def test_a_torch_model_that_ours_does_not_fit():
    state = to_torch(STACKED, IGNORING)
    state["h.0.up.weight"] = state["h.0.up.weight"][1:]
    state["h.0.up.bias"] = state.pop("h.1.up.weight")[0]
    with pytest.raises(ConversionError) as error:
        to_torch(STACKED, IGNORING, like=state)
    said = "tensors do not match the model: 1 missing, first h.1.up.weight; 1 left over, first h.0.up.bias; "
    assert str(error.value).startswith(f"{said}h.0.up.weight is [{F - 1}, {D}] in torch, [{F}, {D}] in the JAX model")


@pytest.mark.parametrize(
    ("layout", "ours", "theirs"),
    [
        ("f d 1 -> d f", (D, F), (F, D, 1)),
        ("1 t d -> t d", (T, D), (1, T, D)),
        ("c 1 1 -> c", (D,), (D, 1, 1)),
        ("f d -> 1 d f", (1, D, F), (F, D)),
        ("o i h w -> h w i o", (T, B, D, F), (F, D, T, B)),
    ],
)
def test_axes_by_name(layout, ours, theirs):
    family = Family("own", {"blocks.": "h.{layer}."}, (Rule("w", "w", layout),))
    tree = {"w": noise(*ours), "blocks": {"w": noise(2, *ours, seed=1)}}
    state = there_and_back(tree, family)
    assert {array.shape for array in state.values()} == {theirs}
    state["w"] = state["w"][..., None]
    said = f"w is float32{[*theirs, 1]}; w, float32{[*ours]}, cannot be made of it: shape {[*theirs, 1]} is not {layout[:3]}"
    assert refused(state, tree, family).startswith(said)


def test_a_squeezed_axis_has_one_entry():
    family = Family("own", {}, (Rule("w", "w", "f d 1 -> d f"),))
    assert "shape [4, 3, 2] is not f d 1" in refused({"w": noise(4, 3, 2)}, {"w": noise(3, 4)}, family)


def test_the_numbers_go_where_the_names_say():
    kernel = noise(F, D, T, 1)
    found = Rule("w", "w", "o i h 1 -> h i o").to_jax(kernel)
    assert all(found[h, i, o] == kernel[o, i, h, 0] for h, i, o in ((1, 2, 3), (4, 5, 6)))


@pytest.mark.parametrize("layout", ["transpose", "a b -> a", "a a -> a a", "a b -> b c", "a -> b -> c"])
def test_what_is_no_layout(layout):
    with pytest.raises(ConversionError, match=f"^layout = '{layout}' is none; give 'same', 'transposed', or"):
        Rule("w", "w", layout)


def test_joined_tensors():
    """Queries, keys and values of torch's are one tensor of ours, layer by layer; four query heads share two of keys."""
    join = Join(("q", "k", "v"), shares=(2, 1, 1))
    rules = (Rule("qkv.kernel", "{part}_proj.weight", "transposed", join=join), Rule("qkv.bias", "{part}_proj.bias", join=join))
    family = Family("own", {"blocks.": "h.{layer}."}, rules)
    tree = {"blocks": {"qkv": {"kernel": noise(2, D, 2 * D), "bias": noise(2, 2 * D, seed=1)}}}
    state = there_and_back(tree, family)
    assert np.array_equal(state["h.1.k_proj.weight"], tree["blocks"]["qkv"]["kernel"][1, :, D : 3 * D // 2].T)
    assert {name: array.shape for name, array in state.items() if "h.0" in name and "bias" in name} == {
        "h.0.q_proj.bias": (D,),
        "h.0.k_proj.bias": (D // 2,),
        "h.0.v_proj.bias": (D // 2,),
    }
    state["h.0.q_proj.bias"], state["h.0.k_proj.bias"] = state["h.0.k_proj.bias"], state["h.0.q_proj.bias"]
    said = "q, k, v have sizes [12, 24, 12] on axis 0, not [24, 12, 12]; give shares"
    assert said in refused(state, tree, family)
    del state["h.0.v_proj.bias"]
    assert "1 missing, first h.0.v_proj.bias" in refused(state, tree, family)


def test_experts_are_stacked():
    names = ("0", "1", "2")
    family = Family("own", {}, (Rule("up", "experts.{part}.weight", "e f d -> e d f", join=Join(names, stacked=True)),))
    tree = {"up": noise(3, D, F)}
    state = there_and_back(tree, family)
    assert all(np.array_equal(state[f"experts.{i}.weight"], tree["up"][i].T) for i in range(3))
    for n in (4, 6):
        with pytest.raises(ConversionError, match=rf"^up\[{n}, {F}, {D}\] does not fit .* {n} entries, for 3 tensors"):
            to_torch({"up": noise(n, D, F)}, family)


@pytest.mark.parametrize(
    "changes", [{"join": Join(("q", "k"))}, {"torch": "{part}"}, {"torch": "{part}", "join": Join(("q",)), "part": Part(0, 2)}]
)
def test_a_join_that_is_none(changes):
    with pytest.raises(ConversionError, match="join goes with a name that holds"):
        Rule(**{"jax": "w", "torch": "w", **changes})


@pytest.fixture(scope="module")
def model():
    return excite(abstract(gpt_config(n_layers=2)), seed=0)


@pytest.fixture
def state(model):
    return to_torch(model, TWIN)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.module."])
def test_a_prefix_too_many(model, state, prefix):
    said = refused({prefix + name: array for name, array in state.items()}, model, TWIN)
    remedy = f"{len(state)} names of the state begin with '{prefix}': give {{name.removeprefix('{prefix}'): tensor}}"
    assert said.endswith(f"; {remedy}")
    assert f"{len(state)} missing, first embed.position.weight (is it {prefix}embed.position.weight?)" in said


def test_a_prefix_too_few():
    ours = excite(abstract(gpt_config(projections="fused", tied=True)), seed=0)
    state = {name.removeprefix("transformer."): array for name, array in to_torch(ours, FAMILIES["gpt2"]).items()}
    said = refused(state, ours, FAMILIES["gpt2"])
    assert "names of the family begin with 'transformer.', the state's do not: give {'transformer.' + name: tensor}" in said


def test_another_depth(model, state):
    deeper = excite(abstract(gpt_config(n_layers=3)), seed=0)
    assert refused(state, deeper, TWIN).endswith("layers under stack.blocks is 2 in the state, 3 in the model")
    assert refused(to_torch(deeper, TWIN), model, TWIN).endswith("layers under stack.blocks is 3 in the state, 2 in the model")


def test_a_left_over_tie(model, state):
    state["lm.weight"] = state["embed.token.weight"]
    remedy = "lm.weight holds what embed.token.weight does: if torch ties them, add tied={'lm.weight': 'embed.token.weight'}"
    assert refused(state, model, TWIN).endswith(f"1 left over, first lm.weight; {remedy} to the family")


def test_a_padded_vocabulary(model, state):
    state["embed.token.weight"] = np.pad(state["embed.token.weight"], [(0, 9), (0, 0)])
    said = (
        f"embed.token.weight is float32[{V + 9}, {D}] as embed.token.table; the model wants float32[{V}, {D}]: 9 more than the "
    )
    assert refused(state, model, TWIN).startswith(f"{said}model on axis 0; build it as large, or cut them off")


def test_all_that_is_wrong_is_said_at_once(model, state):
    del state["norm.weight"]
    state["extra"] = noise(D)
    wrong = [name for name in state if name.startswith("stack.blocks.1.") and name.endswith(".bias")]
    state |= {name: state[name][1:] for name in wrong}
    said = refused(state, model, TWIN)
    assert said.count("the model wants") == 3
    assert f" and {len(wrong) - 3} more" in said
    assert said.startswith(
        "tensors do not match the model: 1 missing, first norm.weight; 1 left over, first extra; stack.blocks.1."
    )


FLAT = {"up": {"kernel": noise(D, F)}}


def test_torch_numbers_its_layers_and_ours_does_not():
    family = Family("own", {}, module_rules("up", "up"))
    said = refused({"h.0.up.weight": noise(F, D), "h.1.up.weight": noise(F, D)}, {"h": FLAT}, family)
    assert said.endswith(
        "torch numbers its layers: it has h.0.up.weight for h.up.weight; give the start of these names with {layer} in stacks"
    )


def test_ours_has_layers_and_torch_no_number():
    said = refused({"h.up.weight": noise(F, D)}, STACKED, IGNORING)
    assert (
        "torch's names carry no layer number: it has h.up.weight for h.0.up.weight; write {one} for {layer} in stacks" in said
    )


def test_a_block_without_a_number_is_a_stack_of_one():
    family, stack = (
        Family("own", {"blocks.": "h.{one}"}, module_rules("up", "up")),
        {"blocks": {"up": {"kernel": noise(1, D, F)}}},
    )
    state = to_torch(stack, family)
    assert list(state) == ["h.up.weight"]
    assert same(to_jax(state, stack, family), stack)
    said = refused(state, {"blocks": {"up": {"kernel": noise(2, D, F)}}}, family)
    assert said == "blocks.up.kernel has 2 layers, and {one} in h.{one}up.weight stands for one; write {layer}"


def test_a_rule_and_a_stack_that_do_not_go_together():
    spelled = Family("own", {"blocks.": "h.{layer}."}, (Rule("blocks.up.kernel", "h.up.weight", "transposed"),))
    said = "blocks.up.kernel has a layer axis, its torch name h.up.weight no number; write {layer} into its rule"
    assert refused({}, STACKED, spelled) == said
    alone = Family("own", {}, (Rule("blocks.up.kernel", "h.{layer}.up.weight", "transposed"),))
    said = "blocks.up.kernel is under no start in stacks with {layer}, its torch name is h.{layer}.up.weight; add its start"
    assert refused({}, STACKED, alone).startswith(said)


def test_layers_that_the_jax_names_number():
    tree = {"blocks": {"0": FLAT, "1": {"up": {"kernel": noise(D, F, seed=1)}}}}
    said = "blocks.0.up.kernel: the JAX model numbers its layers in the names; write 'blocks.' in stacks without {layer}: the"
    assert refused({}, tree, IGNORING).startswith(said)
    state = there_and_back(tree, replace(IGNORING, stacks={"blocks.": "h."}))
    assert sorted(state) == ["h.0.up.weight", "h.1.up.weight"]


class Apart(torch.nn.Module):
    """x + attention(x) by four linear layers, and a table that nothing reads."""

    def __init__(self):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, torch.nn.Linear(D, D))
        self.table = torch.nn.Parameter(torch.randn(T, D))

    def forward(self, x):
        q, k, v = (linear(x).view(B, -1, N, H).transpose(1, 2) for linear in (self.q_proj, self.k_proj, self.v_proj))
        return x + self.o_proj(((q @ k.mT / H**0.5).softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


class Layers(torch.nn.Module):
    """One of them, as others have many."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Apart() for _ in range(1))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Fused(nnx.Module):
    """Ours."""

    def __init__(self):
        self.stack = Stack(block_config(n_layers=1, norm="none", d_ff=0, projections="fused", layers="rolled"))

    def __call__(self, x):
        return self.stack(x)


JOINED = Family(
    "own",
    {"stack.blocks.": "layers.{layer}."},
    projection_rules("attention", "", ("q_proj", "k_proj", "v_proj"), "o_proj"),
    ignored={"table": "nothing reads it"},
)


def test_a_comparison_of_joined_tensors_beside_ignored_ones():
    ours = excite(Fused(), seed=0)
    theirs = load_torch(Layers(), ours, JOINED)
    report = compare(theirs, ours, (noise(B, T, D),), rules=JOINED, checks=("weights", "forward", "gradients"), tier="A")
    assert report.status == "equal", str(report)
    assert report.stages[0].says.endswith("; ignored: layers.0.table (nothing reads it)")
    pairs = {module.jax: module.torch for module in report.modules}
    assert "layers.0" in pairs.values()
    assert "layers.0.q_proj" not in pairs.values()  # no module of ours holds it alone
    assert pairs["stack.blocks.0.attention.out"] == "layers.0.o_proj"


def test_what_needs_the_same_is_told_once(model, state):
    """All tensors of another type, one of them transposed, and a tie that is broken."""
    family = replace(TWIN, tied={"lm_head.weight": "embed.token.weight"})
    state = {name: array.astype(np.float16) for name, array in state.items()}
    state |= {"head.weight": state["head.weight"].T, "lm_head.weight": np.ones((V, D), np.float16)}
    said = refused(state, model, family)
    assert said.count("give it as tensor.to(torch.float32), which loses nothing") == 1
    assert f"the model wants float32[{D}] and {len(state) - 5} more: give it" in said
    turned = f"head.weight is float16[{V}, {D}] as head.kernel; the model wants float32[{D}, {V}]: it is transposed; its rule"
    assert f"{turned} needs layout 'same'" in said
    assert "lm_head.weight and embed.token.weight are tied in family twin, and differ" in said


def test_every_fault_of_a_family_is_listed():
    family = Family("own", {"blocks.": "h.{layer}."}, (*module_rules("up", "up")[:1],), ignored={"up.weight": "frozen"})
    tree = {"blocks": {"up": {"kernel": noise(2, D, F), "bias": noise(2, F)}, "0": FLAT}}
    said = refused({}, tree, family)
    assert said.startswith("blocks.up.bias of the dict has no rule in family own; blocks.0.up.kernel: the JAX model numbers")
    assert "; family own ignores h.0.up.weight (frozen), and the JAX model holds it as blocks.up.kernel" in said
    assert "h.1.up.weight" not in said  # once for all layers
