"""Which tensor is which where the values do not tell: wrong ones, copies, buffers and constants; and what is said of it."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxformer.convert.rules import Family, Part, Rule, to_torch
from jaxformer.errors import ConversionError
from jaxformer.parity.attribute.checks import CHECKS, needs_of
from jaxformer.parity.attribute.comparison import Comparison
from jaxformer.parity.attribute.weights import weights
from jaxformer.parity.pairing.tensors import NO_RULES, identify
from jaxformer.parity.report.data import Stage
from jaxformer.parity.trace.reference import apply
from jaxformer.parity.trace.torch_hooks import TorchState
from parity_tests.support.helpers import D, F, V, noise

Tree = dict[str, Any]
NAMES = ("query", "key", "value", "out")


def blocks() -> tuple[dict[str, np.ndarray], Tree]:
    """torch's weights of two layers, and a JAX tree that holds them; all kernels are square."""
    weights = {f"t.h.{i}.{name}.weight": noise(D, D, seed=9 * i + n) for i in range(2) for n, name in enumerate(NAMES)}
    weights |= {f"t.h.{i}.norm.weight": noise(D, seed=30 + i) for i in range(2)}
    tree: Tree = {"h": {}}
    for i in range(2):
        tree["h"][str(i)] = {name: {"kernel": weights[f"t.h.{i}.{name}.weight"].T.copy()} for name in NAMES}
        tree["h"][str(i)]["norm"] = {"scale": weights[f"t.h.{i}.norm.weight"]}
    return weights, tree


def no_run() -> Any:
    """For weights that leave no doubt: torch is not run."""
    raise AssertionError("torch was run")


def comparison(held: TorchState, tree: Any, rules: Family | None = None) -> Comparison:
    return Comparison(held, tree, rules, apply, no_run, needs_of(CHECKS))


def stage(held: TorchState, tree: Any, rules: Family | None = None) -> Stage:
    """What the comparison says of the weights."""
    return weights(comparison(held, tree, rules)).stage


WRONG: dict[str, tuple[str, str, Any, str]] = {
    "scaled": ("out", "kernel", lambda h: 1.5 * h["1"]["out"]["kernel"], "out.weight, in JAX h.1.out.kernel (relL2 5.0e-01)"),
    "flipped": (
        "out",
        "kernel",
        lambda h: h["1"]["out"]["kernel"][:, ::-1],
        "JAX holds it backwards along axis 0, as a flipped kernel)",
    ),
    "turned": ("out", "kernel", lambda h: h["1"]["out"]["kernel"].T, "(relL2 1.4e+00: JAX holds it transposed)"),
    "another's": (
        "key",
        "kernel",
        lambda h: h["1"]["query"]["kernel"],
        "key.weight, in JAX h.1.key.kernel (relL2 1.4e+00: JAX holds what torch has in t.h.1.query.weight)",
    ),
    "fresh": ("norm", "scale", lambda h: np.ones(D, np.float32), "norm.weight, in JAX h.1.norm.scale (relL2 1.5e+00)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_tensor_is_told_and_torchs_is_used(case):
    weights, tree = blocks()
    name, kind, make, said = WRONG[case]
    tree["h"]["1"][name][kind] = make(tree["h"])
    found = stage(TorchState(weights), tree)
    assert found.status == "different", found
    assert found.says.startswith("1 of 10 tensors differ, first t.h.1."), found
    assert said in found.says


def test_torchs_values_are_what_the_rest_runs_on():
    held, tree = blocks()
    right = tree["h"]["1"]["out"]["kernel"]
    tree["h"]["1"]["out"]["kernel"] = 2 * right
    assert weights(comparison(TorchState(held), tree)).stage.status == "different"
    candidate = comparison(TorchState(held), tree).candidate
    assert np.array_equal(candidate.like["h"]["1"]["out"]["kernel"], right)


def test_one_wrong_part_of_a_packed_tensor_and_one_wrong_layer_of_a_stack():
    packed, stack = noise(3 * D, D), np.stack([noise(F, D, seed=i) for i in range(3)])
    weights = {"in_proj": packed} | {f"layers.{i}.up.weight": stack[i] for i in range(3)}
    q, k, v = (part.T for part in np.split(packed, 3))
    tree = {"att": {"q": {"kernel": q}, "k": {"kernel": 3 * k}, "v": {"kernel": v}}, "up": {"kernel": stack.transpose(0, 2, 1)}}
    tree["up"] = {"kernel": tree["up"]["kernel"] * np.array([1, 2, 1], np.float32)[:, None, None]}
    family = identify(TorchState(weights), tree, NO_RULES).family
    assert family.rule("att.k.kernel").part == Part(1, 3)
    held = to_torch(tree, family)
    assert [name for name in weights if not np.array_equal(held[name], weights[name])] == ["in_proj", "layers.1.up.weight"]


def test_what_was_never_converted_is_refused_with_names_and_shapes():
    weights, tree = blocks()
    fresh = jax.tree.map(lambda leaf: leaf + 1, tree)
    with pytest.raises(
        ConversionError, match=r"10 JAX tensors .* first h.0.key.kernel \[24, 24\] \(nearest: t.h.0.key.weight \["
    ):
        identify(TorchState(weights), fresh, NO_RULES)


def test_what_torch_has_not_is_told():
    weights, tree = blocks()
    tree["pooler"] = {"kernel": noise(D, F, seed=99)}
    found = stage(TorchState(weights), tree)
    assert found.status == "different"
    assert found.says.endswith("bitwise equal; jax has pooler.kernel, torch has not: it is not 0 (rms 1.0e+00 off)"), found


def test_what_is_left_of_both_sides_and_may_be_the_same_is_refused():
    weights, tree = blocks()
    tree["norm"] = {"bias": noise(F, seed=99)}
    with pytest.raises(
        ConversionError,
        match=r"1 JAX tensor with values that the other side has not, first norm.bias \[20\] \(nearest: t.bias \[24\]\)",
    ):
        identify(TorchState(weights | {"t.bias": noise(D, seed=98)}), tree, NO_RULES)


@pytest.mark.parametrize("layers", [1, 2])
def test_tensors_that_changed_places_are_told_by_their_names(layers):
    weights, tree = blocks()
    for i in range(layers):
        block = tree["h"][str(i)]
        block["query"], block["key"] = block["key"], block["query"]
    found = stage(TorchState(weights), tree)
    assert found.status == "equal"
    assert (
        "; matched by value against their names: h.0.key.kernel holds what torch has in t.h.0.query.weight, h.0." in found.says
    )


def packed(layers: int) -> tuple[dict[str, np.ndarray], Tree]:
    """Projections that torch packs."""
    weights = {f"layers.{i}.att.in_proj": noise(3 * D, D, seed=i) for i in range(layers)}
    cut = {str(i): np.split(weights[f"layers.{i}.att.in_proj"], 3) for i in range(layers)}
    return weights, {i: {name: {"kernel": part.T} for name, part in zip("qkv", parts, strict=True)} for i, parts in cut.items()}


def test_parts_that_lie_otherwise_than_in_most_layers_are_told():
    weights, tree = packed(3)
    tree["2"]["q"], tree["2"]["k"] = tree["2"]["k"], tree["2"]["q"]
    says = stage(TorchState(weights), tree).says
    assert says.endswith(
        "against their names: 2.k.kernel holds what torch has in layers.2.att.in_proj (part 0), "
        "2.q.kernel holds what torch has in layers.2.att.in_proj (part 1)"
    ), says
    tree["2"]["q"], tree["2"]["k"] = tree["2"]["k"], tree["2"]["q"]
    assert stage(TorchState(weights), tree).says == "3 of 3 tensors used once, bitwise equal"


def test_of_a_packed_tensor_the_wrong_part_is_told():
    weights, tree = packed(2)
    tree["1"]["k"]["kernel"] = tree["1"]["k"]["kernel"].T
    said = "1 of 2 tensors differ, first layers.1.att.in_proj, in JAX 1.k.kernel (relL2 1.4e+00: JAX holds it transposed)"
    assert stage(TorchState(weights), tree).says.startswith(said)


@pytest.mark.parametrize("names", [("v", "q", "o", "k"), ("query", "foo", "key", "out")])
def test_other_names_are_not_against_names(names):
    weights, tree = blocks()
    other = dict(zip(NAMES, names, strict=True))
    tree = {"h": {i: {other.get(name, name): own for name, own in block.items()} for i, block in tree["h"].items()}}
    assert stage(TorchState(weights), tree).says == "10 of 10 tensors used once, bitwise equal"


def test_one_list_of_ours_may_be_more_than_one_of_torchs():
    weights = {"patch.weight": noise(D, D)} | {f"layer.{i}.weight": noise(D, D, seed=1 + i) for i in range(3)}
    tree = {"blocks": {str(i): {"kernel": array.T} for i, array in enumerate(weights.values())}}
    assert stage(TorchState(weights), tree).says == "4 of 4 tensors used once, bitwise equal"


def test_that_no_rule_fits_is_said():
    weights, tree = blocks()
    rules = Family("other", {}, (Rule("kernel", "w"), Rule("gain", "weight")))
    assert stage(TorchState(weights), tree, rules).says.endswith("bitwise equal; no rule fits; all matched by values")


def test_what_rules_leave_over_beside_a_start_that_is_another_name():
    weights, tree = blocks()
    rules = Family("mine", {"": "t."}, (Rule("kernel", "weight", "transposed"),))
    assert stage(TorchState(weights), tree, rules).says.endswith(
        "bitwise equal; 2 JAX tensors without a rule were matched by values"
    )


TABLE = noise(V, D, seed=50)


def with_table(**tensors: np.ndarray) -> tuple[TorchState, Tree]:
    """The blocks, and a table that torch ties to its head."""
    weights, tree = blocks()
    return TorchState(weights | {"t.wte.weight": TABLE}, tied={"head.weight": "t.wte.weight"}), tree | tensors


def test_copies_of_other_names_go_to_the_nearest_names():
    for token, head in (("tok", "head"), ("wte", "lm_head"), ("tokens", "output_head")):
        held, tree = with_table(**{token: TABLE, head: TABLE.T})
        family = identify(held, tree, NO_RULES).family
        assert (family.torch_names(token, 1), family.torch_names(head, 1)) == (["t.wte.weight"], ["head.weight"]), token


def test_the_one_array_of_what_torch_ties_goes_by_its_first_name():
    held, tree = with_table(tok=2 * TABLE)
    assert stage(held, tree).says.startswith("1 of 11 tensors differ, first t.wte.weight, in JAX tok (relL2 1.0e+00)")


@pytest.mark.parametrize("head", [TABLE, TABLE.T])
def test_one_tensor_that_jax_holds_twice(head):
    weights, tree = blocks()
    found = stage(TorchState(weights | {"t.wte.weight": TABLE}), tree | {"tok": TABLE, "head": head})
    assert found.status == "equal", found.says
    assert "torch has one tensor, t.wte.weight, where JAX has 2" in found.says
