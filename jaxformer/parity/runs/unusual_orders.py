"""Values in an unusual order: a kernel's axes exchanged, one layer's weights in another, or one module's axes transposed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.convert.layouts import in_usual_order, pattern_of, rows_of_heads, say_rows
from jaxformer.convert.rules import Axes, Family, Rule, weights_of
from jaxformer.errors import ParityError, listed
from jaxformer.parity.numerics.axis_order import CLEAR, Order
from jaxformer.parity.numerics.float32_tables import Tables
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import TOLERANCES, distance, error, over
from jaxformer.parity.pairing.tensors import Identified
from jaxformer.parity.report.summarize import LAYER, alike
from jaxformer.parity.runs.isolated import Isolated, Isolation
from jaxformer.parity.runs.load_weights import float64_run
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.reference import Call, Reference


def resolve(
    found: Identified, given: Family, weights: Mapping[str, np.ndarray], reference: Callable[[], Reference], call: Call
) -> Identified:
    """Note doubtful matches, and take the usual order, or the weights of one name, if the output is then far nearer to torch's.

    Matches that the `given` rules state are not doubted. `reference` is called only if there are doubts.
    """
    rules, says = doubtful(found, given)
    noted = replace(found, notes=(*found.notes, *says))
    others = [
        replace(found.family, rules=(*each.values(), *found.family.rules))
        for each in (rules, by_name(found, given, weights))
        if each
    ]
    if not others:
        return noted
    try:
        recorded = reference()
        matched, *off = (output_off(recorded, found, family, call) for family in (found.family, *others))
    except Exception:  # the run itself will report why
        return noted
    nearest = min(off)
    if matched > TOLERANCES["activation"][0] and nearest < CLEAR * matched:
        return replace(noted, family=others[off.index(nearest)])
    return noted


def by_name(found: Identified, given: Family, weights: Mapping[str, np.ndarray]) -> dict[str, Rule]:
    """Rules for the JAX tensors that have the name and the shape of one of torch's `weights`, but hold another's values, or its
    values in another order."""
    rules = {}
    for name, leaf in weights_of(found.model, found.family).items():
        rule = found.family.rule(name)
        alike = name in weights and weights[name].shape == leaf.shape and rule not in given.rules
        if alike and rule != (plain := Rule(name, name)):
            rules[name] = plain
    return rules


def output_off(reference: Reference, found: Identified, family: Family, call: Call) -> float:
    """relL2 of the output in float64 with torch's weights; infinite if it cannot be computed."""
    with jax_float64(Tables(found.tables)):
        model, run = float64_run(found.model, family, reference, call)
        try:
            return distance(run(model), reference.output)
        except (ParityError, TypeError, ValueError):
            return np.inf


def doubtful(found: Identified, given: Family) -> tuple[dict[str, Rule], list[str]]:
    """Find JAX tensors whose kernels or layers are not in the usual order: the rules that restore it, and notes."""
    rules, family = {}, found.family
    free = {
        name for name in weights_of(found.model, family) if family.rule(name) not in given.rules and not family.rule(name).join
    }
    leaves = {name: leaf for name, leaf in weights_of(found.model, family).items() if name in free}
    names = {name: family.torch_names(name, leaf.shape[0] if family.stacked(name) else 1) for name, leaf in leaves.items()}
    turned, crossed, paired = [], [], defaultdict[str, list[str]](list)
    for name in leaves:
        rule = family.rule(name)
        if isinstance(rule.layout, Axes) and (usual := in_usual_order(rule.layout)) != rule.layout:
            if rows_of_heads(rule.layout):
                paired[say_rows(rule.layout)].append(f'{name} (as a rule, "{pattern_of(rule.layout)}")')
            else:
                turned.append(name)
            if usual is not None:
                rules[name] = Rule(name, _torch(names[name], family.stacked(name)), usual, rule.part)
    for name, its in in_layer_order(names).items():
        rule = rules.get(name, family.rule(name))
        crossed += [f"{name} holds what torch has in {mine}" for mine, it in zip(names[name], its, strict=True) if mine != it]
        rules[name] = Rule(name, _torch(its, family.stacked(name)), rule.layout, rule.part)
    says = {"with inner axes in another order than torch's": turned, "in another layer than torch's": crossed, **paired}
    return rules, [f"{what}: {listed(which)}" for what, which in says.items() if which]


def in_layer_order(names: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Restore the order of layers: torch's names in layer order, for the JAX tensors that hold other layers' tensors.

    Only names that differ in exactly one number count as layers.
    """
    groups: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, its in names.items():
        for layer, it in enumerate(its):
            groups[alike(name), alike(it), str(len(its))].append((name, layer))
    found = {name: [*its] for name, its in names.items()}
    for slots in groups.values():
        its = [names[name][layer] for name, layer in slots]
        if one_number([f"{layer}.{name}" for name, layer in slots]) and one_number(its):
            slots.sort(key=lambda slot: (slot[1], numbers(slot[0])))
            for (name, layer), it in zip(slots, sorted(its, key=numbers), strict=True):
                found[name][layer] = it
    return {name: its for name, its in found.items() if its != names[name]}


def one_number(names: list[str]) -> bool:
    """True if the names differ in exactly one of their numbers."""
    return sum(len({*column}) > 1 for column in zip(*map(numbers, names), strict=True)) == 1


def numbers(name: str) -> tuple[int, ...]:
    """Layer numbers in a name."""
    return tuple(map(int, LAYER.findall(name)))


def _torch(names: list[str], stacked: bool) -> Any:
    return tuple(names) if stacked else names[0]


def in_usual_orders(isolated: Isolated, isolation: Isolation) -> Isolated:
    """Repeat the pass in the usual orders of axes, and keep the result if it explains more.

    It does if a call that makes arrays in other orders then diverges, fewer other modules do, none does that did not before,
    and not more do in all. Otherwise the given pass is returned.
    """
    odd = odd_orders(isolated, isolation.valid)
    if not odd:
        return isolated
    usual = isolation.run({**isolated.orders, **odd}, corrected=False)
    before, after = wrong_owners(isolated), wrong_owners(usual)
    makers = {mismatch.owner for mismatch in usual.mismatches if mismatch.place in odd}
    return usual if after & makers and after - makers < before and len(after) <= len(before) else isolated


def wrong_owners(isolated: Isolated) -> set[Site]:
    """Modules whose own code gives other values, by more than rounding."""
    return {mismatch.owner for mismatch in isolated.mismatches if over(error(mismatch.jax, mismatch.torch), "activation")}


def odd_orders(isolated: Isolated, left_out: Container[Site]) -> dict[ArrayKey, Order]:
    """Find the usual order of each array whose axes are in another order, if the usual one gives the same shape.

    The usual order is the most common one among other modules' arrays with as many axes, or torch's own if there are none.
    """
    orders = {key: order for key, order in isolated.orders.items() if key.site != CALL and key.site not in left_out}
    shapes = {mismatch.place: mismatch.torch.shape for mismatch in isolated.mismatches if mismatch.place is not None}
    found = {}
    for key, shape in shapes.items():
        if (order := orders.get(key)) is None:
            continue
        path = alike(key.site.path)
        others = (each for other, each in orders.items() if len(each) == len(order) and alike(other.site.path) != path)
        usual = next((each for each, _ in Counter(others).most_common(1)), tuple(range(len(order))))
        if usual != order and [shape[axis] for axis in usual] == [shape[axis] for axis in order]:
            found[key] = usual
    return found
