"""Which tensor of a JAX model is which of torch's: by rules, by values, by names and places, in this order.

The values may differ all the same. What is a weight, a copy of one that torch ties, a buffer, or the model's own constant is
resolved, so that everything else can be compared on torch's values.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.layouts import find_layout
from jaxformer.convert.mismatch import listed
from jaxformer.convert.rules import Family, Rule, to_jax
from jaxformer.errors import ConversionError
from jaxformer.parity.capture.module_paths import last
from jaxformer.parity.match.buffers import Constants, typed_constants
from jaxformer.parity.match.candidates import Ours, Search, Theirs, matching, on_host, torch_names
from jaxformer.parity.match.names import nearest_names, twins
from jaxformer.parity.match.one_sided import OneSided, may_be_pairs, one_sided
from jaxformer.parity.match.placement import crossed, place, straighten
from jaxformer.parity.record.torch_state import Arrays, TorchState
from jaxformer.pytree import named_weights

Names = Mapping[str, tuple[str, ...]]
"""JAX name -> torch's, of every layer."""
NO_RULES = Family("matched by values", {}, ())


@dataclass(frozen=True)
class Identified:
    """A JAX model that is understood."""

    family: Family
    model: PyTree
    """With torch's buffers."""
    notes: tuple[str, ...]
    """What is to be said of it."""
    wrong: bool
    """Whether buffers differ."""
    tables: Arrays
    """torch's buffers, and what it does not train, that it does not hold."""
    alone: tuple[OneSided, ...] = ()
    """Parameters that one side does not have."""


def identify(held: TorchState, jax_model: PyTree, rules: Family) -> Identified:
    """ConversionError where it is not sure which tensor is which."""
    leaves, typed = on_host(named_weights(jax_model)), typed_constants(jax_model)
    ruled = by_rules(held, leaves, rules)
    reached = {it for names in ruled.values() for it in names}
    ruled = {name: names for name, names in ruled.items() if all(held.tied.get(it, it) in reached for it in names)}
    constants = ruled_buffers(held, leaves, rules, ruled)
    search = Search({**held.weights}, {name: leaf for name, leaf in leaves.items() if name not in typed or name in ruled})
    _prefill(search, held, rules, {name: names for name, names in ruled.items() if name not in constants.names})
    _search(search, held, {name: leaf for name, leaf in leaves.items() if name not in constants.names}, typed)
    found = constants.without_buffers({name: rule for name, rule in search.rules().items() if name not in ruled}, held.buffers)
    used = {it for names in (*map(torch_names, found.values()), *ruled.values()) for it in names}
    tied = {alias: first for alias, first in held.tied.items() if alias in used}
    free, still = unused(held, rules, used | set(tied.values()))
    left = {name: leaf for name, leaf in leaves.items() if name not in {*found, *ruled, *constants.names}}
    constants.pair_placed({name: leaf for name, leaf in left.items() if name in typed}, still, search.homes())
    left = {name: leaf for name, leaf in left.items() if name not in constants.names}
    constants.search(left, held.buffers, search.homes(), typed, short=bool(free))
    copies = {} if free else _copies(search, held, {name: left[name] for name in left if name not in constants.names})
    found |= {name: rule for name, (rule, _) in copies.items()}
    tied |= {str(rule.torch): first for rule, first in copies.values()}
    left = {name: leaf for name, leaf in left.items() if name not in {*found, *constants.names}}
    lost = {name: held.weights[name] for name in free}
    if (left or free) and may_be_pairs(left, lost, len(found) + len(ruled)):
        if not rules.rules or any(not _torch_names(rules, name, leaf) for name, leaf in left.items()):
            raise ConversionError(_refusal(left, lost))
        left, lost = {}, {}  # the rules are wrong, and say in what
    alone = (*one_sided("torch", lost, held.weights), *one_sided("jax", left, leaves))
    constants.leave({**held.buffers, **still})
    family = replace(
        _family(rules, found, ruled, leaves),
        constants=frozenset({*constants.names, *left}),
        tied=tied,
        absent=frozenset({*lost, *still}),
    )
    notes = (*constants.says(rules), *_tie_notes(found, ruled, tied), *_notes(rules, found, ruled, crossed(search)))
    return Identified(family, constants.put(jax_model), notes, bool(constants.wrong), constants.missing, alone)


def identify_shapes(held: TorchState, jax_model: PyTree, rules: Family) -> Identified:
    """The same of a model that has shapes alone: rules say it all."""
    leaves = named_weights(jax_model)
    ruled = by_rules(held, leaves, rules)
    constants = ruled_buffers(held, leaves, rules, ruled)
    tied = {alias: first for alias, first in held.tied.items() if any(alias in names for names in ruled.values())}
    free, still = unused(held, rules, {it for names in ruled.values() for it in names} | set(tied.values()))
    constants.leave({**held.buffers, **still})
    sure = set(leaves) == set(ruled) and not may_be_pairs({}, {name: held.weights[name] for name in free}, len(ruled))
    alone = tuple(one_sided("torch", free, held.weights)) if sure else ()
    absent = frozenset({*still, *(each.name for each in alone)})
    family = replace(rules, constants=frozenset(constants.names), tied=tied, absent=absent)
    notes = tuple(_tie_notes({}, ruled, tied))
    return Identified(family, constants.put(jax_model), notes, wrong=False, tables=constants.missing, alone=alone)


def unused(held: TorchState, rules: Family, used: Container[str]) -> tuple[list[str], dict[str, np.ndarray]]:
    """torch's weights that JAX has none of, but for those that the rules ignore; and apart, those that torch does not train:
    our code may compute them."""
    free = [name for name in held.weights if name not in used and rules.why_ignored(name) is None]
    still = {name: held.weights[name] for name in free if name in held.frozen}
    return [name for name in free if name not in still], still


def by_rules(held: TorchState, leaves: Mapping[str, Any], rules: Family) -> Names:
    """Of the JAX tensors that rules lead to one of torch's; of two that they lead to the same one, the first."""
    known, ruled, taken = {*held.weights, *held.tied, *held.buffers}, {}, set()
    for name, leaf in leaves.items():
        names = _torch_names(rules, name, leaf)
        places = {(it, rules.rule(name).part) for it in names}
        if known & set(names) and not places & taken:
            ruled[name] = names
            taken |= places
    return ruled


def ruled_buffers(held: TorchState, leaves: Mapping[str, Any], rules: Family, ruled: Names) -> Constants:
    """What rules lead to torch's buffers is no weight."""
    constants = Constants()
    for name, names in ruled.items():
        if set(names) <= set(held.buffers):
            theirs = np.asarray(to_jax({it: held.buffers[it] for it in names}, {name: leaves[name]}, rules)[name])
            constants.pair(name, leaves[name], ", ".join(names), theirs)
    return constants


def _torch_names(rules: Family, name: str, leaf: Any) -> tuple[str, ...]:
    """torch's names of a JAX tensor by rules; none where there is no rule."""
    try:
        return tuple(rules.torch_names(name, leaf.shape[0] if rules.stacked(name) else 1))
    except ConversionError:
        return ()


def _prefill(search: Search, held: TorchState, rules: Family, ruled: Names) -> None:
    """What rules say is known: it tells where the rest lies."""
    for name, names in ruled.items():
        if set(names) <= {*held.weights, *held.tied}:
            rule = rules.rule(name)
            search.torch |= {it: held.weights[held.tied[it]] for it in names if it in held.tied}
            joined = len(rule.join.names) if rule.join else 1
            for layer, it in enumerate(names[::joined]):
                search.found[Ours(name, layer if rules.stacked(name) else None)] = Theirs(it, rule.part), rule.layout
            for it in names:
                search.used[it].add(rule.part)


def _search(search: Search, held: TorchState, leaves: Mapping[str, np.ndarray], typed: set[str]) -> None:
    """Weights with weights first; then with what is none by its type; then buffers, and what differs in values."""
    search.by_values()
    _untie(search, held)
    search.by_names()
    if search.open() or search.tensors() or len(leaves) > len(search.jax):
        search.jax |= leaves
        if search.tensors():
            search.by_values()
            search.by_names()
        search.torch |= held.buffers
        known = set(search.found)
        search.by_values()
        search.by_names()
        for mine in [one for one in search.found if one not in known]:
            other, _ = search.found[mine]
            named = mine.name in typed or twins(last(mine.name), last(other.name))
            if other.name in held.buffers and not named and search.print_of(mine).constant:
                search.used[other.name].discard(search.found.pop(mine)[0].part)
    straighten(search)
    place(search, {*typed, *held.buffers})
    if any(mine.name not in typed for mine in search.open()):
        search.torch |= {alias: held.weights[first] for alias, first in held.tied.items()}
        place(search, {*typed, *held.buffers})


def _untie(search: Search, held: TorchState) -> None:
    """Where JAX has more than one tensor of the values of one that torch ties, all names of torch's count."""
    tied = {search.print_of(Theirs(first)): first for first in set(held.tied.values())}
    count: dict[str, int] = {first: int(bool(search.used[first])) for first in tied.values()}
    for mine in search.open():
        if any(known.size == search.array(mine).size for known in tied) and (first := tied.get(search.print_of(mine))):
            count[first] += 1
    search.torch |= {alias: held.weights[first] for alias, first in held.tied.items() if count[first] > 1}


def _copies(search: Search, held: TorchState, left: Mapping[str, np.ndarray]) -> dict[str, tuple[Rule, str]]:
    """What holds the values of a weight that another JAX tensor has already, where torch has no name for it: the rule, by a
    name of its own, and torch's name."""
    copies = {}
    for name, leaf in left.items():
        for first, theirs in held.weights.items():
            same = theirs.size == leaf.size and search.print_of(Theirs(first)) == search.print_of(Ours(name))
            if same and not search.print_of(Theirs(first)).constant and (layout := find_layout(theirs, leaf)) is not None:
                copies[name] = Rule(name, f"(copy) {name}", layout), first
                break
    return copies


def _family(rules: Family, found: Mapping[str, Rule], ruled: Names, leaves: Mapping[str, np.ndarray]) -> Family:
    """The rules, and before them those that were found; the rules alone where these would change what rules say."""
    own = matching(found, [], []).family
    more = tuple(replace(rule, torch=torch_names(rule)) for rule in own.rules)
    stacks = {**rules.stacks, **{start: each for start, each in own.stacks.items() if start not in rules.stacks}}
    family = replace(rules, stacks=stacks, rules=(*more, *rules.rules))
    wanted = {name: (names, rules.stacked(name)) for name, names in ruled.items()}
    wanted |= {rule.jax: (rule.torch, own.stacked(rule.jax)) for rule in more}
    reached = {name: (_torch_names(family, name, leaves[name]), family.stacked(name)) for name in wanted}
    return family if reached == wanted else rules


def _tie_notes(found: Mapping[str, Rule], ruled: Names, tied: Mapping[str, str]) -> list[str]:
    """Which copies train apart."""
    names = {**ruled, **{name: torch_names(rule) for name, rule in found.items()}}
    holds = {
        first: [name for name, them in names.items() if any(tied.get(it, it) == first for it in them)]
        for first in tied.values()
    }
    return [
        f"torch has one tensor, {first}, where JAX has {len(ours)}, {listed(ours)}: trained, they part"
        for first, ours in holds.items()
        if len(ours) > 1
    ]


def _notes(rules: Family, found: Mapping[str, Rule], ruled: Names, against: list[str]) -> list[str]:
    notes = []
    if rules.rules and found:
        notes += [
            f"{len(found)} JAX tensors without a rule were matched by values"
            if ruled
            else "no rule fits; all matched by values"
        ]
    return notes + ([f"matched by value against their names: {listed(against)}"] if against else [])


def _refusal(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> str:
    """What is left, with the nearest name and the shapes."""
    if not theirs:
        name = next(iter(ours))
        return f"torch has no tensor for {len(ours)} JAX tensors, first {_shaped(name, ours)}; leave them out of the tree"
    side, left, others = ("JAX", ours, theirs) if ours else ("torch", theirs, ours)
    name = next(iter(left))
    near = ", ".join(_shaped(it, others) for it in nearest_names(name, others))
    return (
        f"{len(left)} {side} tensors hold values that the other side has not, first {_shaped(name, left)}"
        + (f" (nearest: {near})" if near else "")
        + "; convert the weights before you compare, or give rules"
    )


def _shaped(name: str, arrays: Mapping[str, np.ndarray]) -> str:
    return f"{name} {list(arrays[name].shape)}"
