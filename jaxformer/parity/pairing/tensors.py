"""Identification of JAX tensors with torch tensors: by rules, by values, by names and places, in this order.

The values may differ. Each tensor is identified as a weight, a copy of a weight that torch ties, a buffer, or the model's own
constant, so that everything else can be compared on torch's values.
"""

import difflib
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.layouts import find_layout, same_numbers
from jaxformer.convert.rules import Family, Rule, to_jax
from jaxformer.errors import ConversionError, listed
from jaxformer.parity.pairing.buffers import Constants, typed_constants
from jaxformer.parity.pairing.candidates import Assignment
from jaxformer.parity.pairing.gradients import Gradients
from jaxformer.parity.pairing.joined import match_joined, match_parted, match_summed
from jaxformer.parity.pairing.names import same_word
from jaxformer.parity.pairing.pieces import JaxPiece, TorchPiece, on_host
from jaxformer.parity.pairing.placement import (
    OneSided,
    correct_layouts,
    may_be_pairs,
    one_sided,
    pair_by_path,
    pair_by_place,
    swapped,
)
from jaxformer.parity.pairing.rules import as_family, by_layer, torch_names
from jaxformer.parity.report.text import count
from jaxformer.parity.trace.call_sites import last, parent
from jaxformer.parity.trace.torch_hooks import Arrays, TorchState
from jaxformer.pytree import named_weights

T = TypeVar("T")
Names = Mapping[str, tuple[str, ...]]
"""JAX name -> torch's names, one for each layer."""
NO_RULES = Family("matched by values", {}, ())


@dataclass(frozen=True)
class Identified:
    """A JAX model in which every tensor is identified."""

    family: Family
    model: PyTree
    """JAX model with torch's buffers."""
    notes: tuple[str, ...]
    """Notes for the check of weights."""
    wrong: bool
    """True if buffers differ by more than rounding."""
    tables: Arrays
    """torch's buffers, and parameters that torch does not train, that JAX does not hold."""
    alone: tuple[OneSided, ...] = ()
    """Parameters that only one side has."""


def identify(state: TorchState, jax_model: PyTree, rules: Family, gradients: Gradients | None = None) -> Identified:
    """Identify every tensor of a JAX model; `gradients` are asked for only if values and places leave some open. Raises
    ConversionError if a tensor's partner is uncertain.
    """
    leaves, typed, rules = on_host(named_weights(jax_model)), typed_constants(jax_model), rules.sized(jax_model)
    ruled = by_rules(state, leaves, rules)
    reached = {it for names in ruled.values() for it in names}
    ruled = {name: names for name, names in ruled.items() if all(state.tied.get(it, it) in reached for it in names)}
    constants = ruled_buffers(state, leaves, rules, ruled)
    constants.pair_by_path({name: leaves[name] for name in typed & leaves.keys() - ruled.keys()}, state.buffers, jax_model)
    known = Assignment({**state.weights}, _without(leaves, constants.names), gradients=gradients)
    _add_rules(known, state, rules, _without(ruled, constants.names))
    _assign(known, state, typed, set(ruled))
    found = constants.without_buffers(_without(known.rules(), ruled), state.buffers)
    used = {it for names in (*map(torch_names, found.values()), *ruled.values()) for it in names}
    tied = {alias: first for alias, first in state.tied.items() if alias in used}
    free, still = unused(state, rules, used | set(tied.values()))

    def left() -> dict[str, np.ndarray]:
        return _without(leaves, {*found, *ruled, *constants.names})

    constants.pair_by_path(left(), {**state.buffers, **still}, jax_model)
    constants.pair_by_place(_without(left(), leaves.keys() - typed), still, modules := known.modules())
    constants.pair_left(left(), state.buffers, modules, typed, short=bool(free))
    found |= (firsts := _first_of_several(known, state, free, left()))
    free = [name for name in free if name not in {rule.torch for rule in firsts.values()}]
    copies = {} if free else _copies(known, state, left())
    found |= {name: rule for name, (rule, _) in copies.items()}
    tied |= {str(rule.torch): first for rule, first in copies.values()}
    own, lost = left(), {name: state.weights[name] for name in free}
    if (own or lost) and may_be_pairs(own, lost, len(found) + len(ruled)):
        if not rules.rules or any(not _torch_names(rules, name, leaf) for name, leaf in own.items()):
            raise ConversionError(_refusal(own, lost))
        own, lost = {}, {}  # the rules are wrong; the conversion reports how
    constants.note_missing({**state.buffers, **still})
    apart = {"constants": frozenset({*constants.names, *own}), "absent": frozenset({*lost, *still})}
    family = replace(_family(rules, found, ruled, leaves), tied=tied, **apart)
    notes = (*constants.notes(rules), *_tie_notes(found, ruled, tied), *_notes(rules, found, ruled, swapped(known)))
    alone = *one_sided("torch", lost, state.weights), *one_sided("jax", own, leaves)
    return Identified(family, constants.put(jax_model), notes, bool(constants.wrong), constants.missing, alone)


def _without(named: Mapping[str, T], names: Container[str]) -> dict[str, T]:
    return {name: each for name, each in named.items() if name not in names}


def identify_shapes(state: TorchState, jax_model: PyTree, rules: Family) -> Identified:
    """Identify the tensors of a model that has shapes only, by rules."""
    leaves, rules = named_weights(jax_model), rules.sized(jax_model)
    ruled = by_rules(state, leaves, rules)
    constants = ruled_buffers(state, leaves, rules, ruled)
    tied = {alias: first for alias, first in state.tied.items() if any(alias in names for names in ruled.values())}
    free, still = unused(state, rules, {it for names in ruled.values() for it in names} | set(tied.values()))
    constants.note_missing({**state.buffers, **still})
    sure = set(leaves) == set(ruled) and not may_be_pairs({}, {name: state.weights[name] for name in free}, len(ruled))
    alone = tuple(one_sided("torch", free, state.weights)) if sure else ()
    absent = frozenset({*still, *(each.name for each in alone)})
    family = replace(rules, constants=frozenset(constants.names), tied=tied, absent=absent)
    notes = tuple(_tie_notes({}, ruled, tied))
    return Identified(family, constants.put(jax_model), notes, wrong=False, tables=constants.missing, alone=alone)


def unused(state: TorchState, rules: Family, used: Container[str]) -> tuple[list[str], dict[str, np.ndarray]]:
    """Split torch's weights without a partner that the rules do not ignore: names of trained ones, and frozen ones by name.

    Frozen weights are kept apart because JAX code may compute them.
    """
    free = [name for name in state.weights if name not in used and rules.why_ignored(name) is None]
    still = {name: state.weights[name] for name in free if name in state.frozen}
    return [name for name in free if name not in still], still


def by_rules(state: TorchState, leaves: Mapping[str, Any], rules: Family) -> Names:
    """JAX tensors that rules lead to torch's tensors; of several that lead to the same one, the first."""
    known, ruled, taken = {*state.weights, *state.tied, *state.buffers}, {}, set()
    for name, leaf in leaves.items():
        names = _torch_names(rules, name, leaf)
        places = {(it, rules.rule(name).part) for it in names}
        if known & set(names) and not places & taken:
            ruled[name] = names
            taken |= places
    return ruled


def ruled_buffers(state: TorchState, leaves: Mapping[str, Any], rules: Family, ruled: Names) -> Constants:
    """Pair the JAX tensors that rules lead to torch's buffers: they are not weights."""
    constants = Constants()
    for name, names in ruled.items():
        if set(names) <= set(state.buffers):
            torch = np.asarray(to_jax({it: state.buffers[it] for it in names}, {name: leaves[name]}, rules)[name])
            constants.pair(name, leaves[name], ", ".join(names), torch)
    return constants


def _torch_names(rules: Family, name: str, leaf: Any) -> tuple[str, ...]:
    """torch's names of a JAX tensor by rules; empty if no rule fits."""
    try:
        return tuple(rules.torch_names(name, leaf.shape[0] if rules.stacked(name) else 1))
    except ConversionError:
        return ()


def _add_rules(known: Assignment, state: TorchState, rules: Family, ruled: Names) -> None:
    """Add the pairs that rules give; they help to place the rest."""
    for name, names in ruled.items():
        if set(names) <= {*state.weights, *state.tied}:
            rule = rules.rule(name)
            known.torch |= {it: state.weights[state.tied[it]] for it in names if it in state.tied}
            joined = len(rule.join.names) if rule.join else 1
            for layer, it in enumerate(names[::joined]):
                known.pairs[JaxPiece(name, layer if rules.stacked(name) else None)] = TorchPiece(it, rule.part), rule.layout
            for it in names:
                known.used[it].add(rule.part)


def _assign(known: Assignment, state: TorchState, typed: set[str], ruled: set[str]) -> None:
    """Pair weights with weights, then with JAX tensors that are not weights by type, then buffers, then tensors of other
    values."""
    leaves, no_weights = known.jax, {*typed, *state.buffers}
    known.jax = {name: leaf for name, leaf in leaves.items() if name not in typed or name in ruled}
    _untie(known, state)
    known.resolve()
    known.jax = leaves
    known.resolve()
    match_joined(known)
    match_parted(known)
    match_summed(known)
    known.torch |= state.buffers
    known.resolve()
    for mine, (other, _) in list(known.pairs.items()):  # constants equal buffers by chance unless names agree
        named = mine.name in typed or same_word(last(mine.name), last(other.name))
        if other.name in state.buffers and not named and known.fingerprint(mine).constant:
            known.remove(mine)
    correct_layouts(known)
    pair_by_path(known, no_weights)
    pair_by_place(known, no_weights)
    if any(mine.name not in typed for mine in known.open()):
        known.torch |= {alias: state.weights[first] for alias, first in state.tied.items()}
        pair_by_place(known, no_weights)


def _untie(known: Assignment, state: TorchState) -> None:
    """Add all of torch's names of a tied tensor whose values several JAX tensors hold."""
    tied = {known.fingerprint(TorchPiece(first)): first for first in set(state.tied.values())}
    count: dict[str, int] = {first: int(bool(known.used[first])) for first in tied.values()}
    for mine in known.open():
        if any(it.size == known.array(mine).size for it in tied) and (first := tied.get(known.fingerprint(mine))):
            count[first] += 1
    known.torch |= {alias: state.weights[first] for alias, first in state.tied.items() if count[first] > 1}


def _first_of_several(known: Assignment, state: TorchState, free: list[str], left: Mapping[str, np.ndarray]) -> dict[str, Rule]:
    """Rule for the first of several JAX tensors that hold the values of one torch weight."""
    firsts = {}
    for name in free:
        torch = state.weights[name]
        alike = [it for it in left if known.fingerprint(JaxPiece(it)) == known.fingerprint(TorchPiece(name))]
        if len(alike) > 1 and (layout := find_layout(torch, left[alike[0]])) is not None:
            firsts[alike[0]] = Rule(alike[0], name, layout)
    return firsts


def _copies(known: Assignment, state: TorchState, left: Mapping[str, np.ndarray]) -> dict[str, tuple[Rule, str]]:
    """Rules for JAX tensors that copy a weight which another JAX tensor holds and for which torch has no further name.

    Each rule has a torch name of its own and comes with torch's name of the weight.
    """
    copies = {}
    for name, leaf in left.items():
        for first, torch in state.weights.items():
            same = torch.size == leaf.size and known.fingerprint(TorchPiece(first)) == known.fingerprint(JaxPiece(name))
            if same and not known.fingerprint(TorchPiece(first)).constant and (layout := find_layout(torch, leaf)) is not None:
                copies[name] = Rule(name, f"(copy) {name}", layout), first
                break
    return copies


def _family(rules: Family, found: Mapping[str, Rule], ruled: Names, leaves: Mapping[str, np.ndarray]) -> Family:
    """Combine the rules with those found, which come first; the given rules alone if the new ones would change their effect."""
    own = as_family(found)
    more = tuple(replace(rule, torch=by_layer(rule)) for rule in own.rules)
    stacks = {**rules.stacks, **{start: each for start, each in own.stacks.items() if start not in rules.stacks}}
    family = replace(rules, stacks=stacks, rules=(*more, *rules.rules))
    wanted = {name: (names, rules.stacked(name)) for name, names in ruled.items()}
    wanted |= {rule.jax: (torch_names(rule), own.stacked(rule.jax)) for rule in more}
    reached = {name: (_torch_names(family, name, leaves[name]), family.stacked(name)) for name in wanted}
    return family if reached == wanted else rules


def _tie_notes(found: Mapping[str, Rule], ruled: Names, tied: Mapping[str, str]) -> list[str]:
    """Describe copies of a tied tensor: they train apart."""
    names, notes = {**ruled, **{name: torch_names(rule) for name, rule in found.items()}}, []
    for first in dict.fromkeys(tied.values()):
        jax = [name for name, them in names.items() if any(tied.get(it, it) == first for it in them)]
        if len(jax) > 1:
            notes.append(f"torch has one tensor, {first}, where JAX has {len(jax)}, {listed(jax)}: trained, they part")
    return notes


def _notes(rules: Family, found: Mapping[str, Rule], ruled: Names, against: list[str]) -> list[str]:
    some = f"{count(len(found), 'JAX tensor')} without a rule {'was' if len(found) == 1 else 'were'} matched by values"
    notes = [some if ruled else "no rule fits; all matched by values"] if rules.rules and found else []
    joins = dict.fromkeys(
        f"{last(name)} of {last(parent(name)) or 'the model'} holds {', '.join(rule.join.names)} of torch's"
        for name, rule in found.items()
        if rule.join and not rule.join.summed
    )
    notes += [f"joined: {listed([*joins])}"] if joins else []
    return notes + ([f"matched by value against their names: {listed(against)}"] if against else [])


def _refusal(jax: Mapping[str, np.ndarray], torch: Mapping[str, np.ndarray]) -> str:
    """Message about the remaining tensors, with the nearest name and the shapes."""
    side, left, others = ("JAX", jax, torch) if jax else ("torch", torch, jax)
    tensors, name = count(len(left), f"{side} tensor"), next(iter(left))
    if not torch:
        return f"torch has no tensor for {tensors}, first {_shaped(name, jax)}; leave them out of the tree"
    near = ", ".join(_shaped(it, others) for it in difflib.get_close_matches(name, list(others), cutoff=0.3))
    near = f" (nearest: {near})" if near else ""
    if any(same_numbers(array, left[name]) for array in others.values()):
        says = "whose values do not tell which of the other side's they are, or in which order their axes stand"
        remedy = "excite a model before its weights are copied (`jf.excite`), call the tensors alike, or give rules"
        return f"{tensors} {says}, as zeros do not, first {_shaped(name, left)}{near}; {remedy}"
    says = f"with values that the other side has not, first {_shaped(name, left)}{near}"
    return f"{tensors} {says}; convert the weights before you compare, or give rules"


def _shaped(name: str, arrays: Mapping[str, np.ndarray]) -> str:
    return f"{name} {list(arrays[name].shape)}"
