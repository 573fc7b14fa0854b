"""Rules of a family of checkpoints: one table converts in both directions, for weights, gradients and moments alike.

    family = Family(
        name="mine",
        stacks={"blocks.": "model.layers.{layer}."},
        rules=(
            *attention_rules("attention", "self_attn"),  # torch.nn.MultiheadAttention: packed projections
            *projection_rules("cross", "cross_attn", ("q_proj", "k_proj", "v_proj"), "o_proj"),  # separate projections
            *module_rules("feed_forward.up", "fc1"),  # torch.nn.Linear, LayerNorm or Embedding
            *packed_rules("attention", "self_attn.query_key_value"),  # one linear layer, head by head or by groups
            Rule("scale.gain", "scale.gamma", "c 1 1 -> c"),  # any tensor, with its axes in another order
            Rule("query.kernel", "wq.weight", "(N h 2) d -> d (N 2 h)"),  # rotary pairs in torch, halves in jax
            Rule("gate.kernel", "gate_up_proj.weight", "transposed", Part(0, 2)),  # the first half of the tensor
            Rule("position.table", "embed_positions.weight", "(_2 + t) d -> t d"),  # two rows missing from the JAX table
            Rule("token.table", "wte.weight", "(v + _) d -> v d"),  # a vocabulary that is padded in torch
        ),
        tied={"lm_head.weight": "model.embed.weight"},
        ignored={"attn.mask": "the causal mask"},
    )
    model = to_jax(torch_model.state_dict(), model, family)  # `jaxformer.from_torch` also takes names of families
    state = to_torch(model, family, like=torch_model.state_dict())

Layouts are described in patterns.py. Rules only move numbers: the inverse is exact, and gradients and moments are converted
alike. Only a sum, `Join(("ih", "hh"), summed=True)`, is one-way, from torch. No rule adds a constant: w + 1 would be rounded,
and weight decay pulls w to 0, not w + 1. A norm that computes with 1 + w is a setting of the model.
"""

from collections.abc import Container, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.axes import WHOLE, Axes, Join, Layout, Part
from jaxformer.convert.family import Family, Rule, attention_rules, module_rules, packed_rules, projection_rules
from jaxformer.convert.host import host, to_device
from jaxformer.convert.mismatch import Misfit, bare, mismatch, off_shape, off_type, parted
from jaxformer.convert.patterns import Sizes
from jaxformer.errors import ConversionError, listed
from jaxformer.pytree import is_weight, map_named, named_weights

__all__ = [
    "WHOLE",
    "Axes",
    "Family",
    "Join",
    "Layout",
    "Part",
    "Place",
    "Rule",
    "attention_rules",
    "gradients_to_torch",
    "in_torchs_layout",
    "module_rules",
    "packed_rules",
    "places",
    "projection_rules",
    "sums",
    "tensors_to_torch",
    "tied_names",
    "to_jax",
    "to_torch",
    "weights_of",
]


class Place(NamedTuple):
    """Place of a torch tensor, or of a part of it, in a JAX tree."""

    name: str
    layer: int
    """Index of the layer; 0 without a layer axis."""
    joined: int = 0
    """Index among the torch tensors that are joined."""


def weights_of(tree: PyTree, family: Family) -> dict[str, Any]:
    """Return every float leaf by its name, except for the model's constants."""
    return {name: leaf for name, leaf in named_weights(tree).items() if name not in family.constants}


def to_torch(tree: PyTree, family: Family, *, like: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
    """Return a JAX model's tensors, or a tree's of its shape, by torch's names, tied ones by all, and in torch's layout.

    `like` is the state of the torch model that is to receive it: the result then fits `load_state_dict(strict=True)`, with
    tensors that the family ignores taken from `like`. ConversionError if the two do not fit.
    """
    state = tensors_to_torch(tree, family, like or {})
    if both := next(iter(sums(tree, family).values()), ()):
        raise ConversionError(f"the JAX model holds the sum of torch's {' and '.join(both)}, which does not tell them apart")
    for alias, held in family.tied.items():
        if alias in state:
            state.setdefault(held, state[alias])
    state |= {alias: state[held] for alias, held in family.tied.items() if alias not in state and held in state}
    return state if like is None else _as_in(like, state, family)


def _as_in(like: Mapping[str, Any], state: Mapping[str, np.ndarray], family: Family) -> dict[str, np.ndarray]:
    """Return the tensors under the names in `like`; ConversionError unless names, shapes and shared memory fit."""
    ignored = {name for name in like if name not in state and family.why_ignored(name) is not None}
    names = set(state) - {name for names in family.tied.items() for name in names if name not in like}
    misfits, shared = [], {}
    for name in (name for name in like if name in state):
        if state[name].shape != tuple(like[name].shape):
            says = f"{name} is {list(like[name].shape)} in torch, {list(state[name].shape)} in the JAX model"
            misfits.append(Misfit(says, ": it is transposed" if state[name].shape == tuple(like[name].shape)[::-1] else ""))
        memory = (like[name].data_ptr(), tuple(like[name].shape)) if getattr(like[name], "data_ptr", int)() else name
        first = shared.setdefault(memory, name)
        if first != name and not np.array_equal(state[first], state[name], equal_nan=True):
            misfits.append(Misfit(f"{name} and {first} are one tensor in torch, and two that differ in the JAX model"))
    if misfits or names != set(like) - ignored:
        raise ConversionError(mismatch(names, {name: np.empty(0) for name in like if name not in ignored}, misfits))
    return {name: host(like[name]) if name in ignored else state[name] for name in like}


def tensors_to_torch(tree: PyTree, family: Family, like: Mapping[str, Any] = {}) -> dict[str, np.ndarray]:
    """Convert each tensor of the JAX model once; dropped values are taken from `like`, each term of a sum is the sum."""
    return {name: np.array(array, order="C") for name, array in in_torchs_layout(tree, family, like).items()}


def in_torchs_layout(tree: PyTree, family: Family, like: Mapping[str, Any] = {}) -> dict[str, np.ndarray]:
    """Return the tensors of `tensors_to_torch` as views of the model's arrays, where axes in another order are all it takes."""
    family = family.sized(tree)
    leaves, sizes = weights_of(tree, family), family.sizes
    if shapes := [name for name, leaf in leaves.items() if isinstance(leaf, jax.ShapeDtypeStruct)]:
        raise ConversionError(f"{listed(shapes)} of the JAX model are shapes alone; give a model with weights")
    arrays = {name: np.asarray(leaf) for name, leaf in leaves.items()}

    @lru_cache(1)  # the tensors of a join follow each other
    def converted(name: str, layer: int, receiver: str) -> np.ndarray:
        array = arrays[name][layer] if family.stacked(name) else arrays[name]
        return family.rule(name).to_torch(array, sizes, host(like[receiver]) if receiver in like else None)

    def whole(torch_name: str, given: Sequence[Place]) -> np.ndarray:
        held = [arrays[name][layer] if family.stacked(name) else arrays[name] for name, layer, _ in given]
        rule, there = family.rule(given[0].name), host(like[torch_name]) if torch_name in like else None
        try:
            if rule.packed:
                return rule.packed.to_torch(held, sizes, there)
            held = [converted(place.name, place.layer, "" if rule.join else torch_name) for place in given]
            if rule.join is not None and not rule.join.summed:
                return rule.join.apart(held[0], sizes)[given[0].joined]
            return held[0] if len(held) == 1 else np.concatenate(held, axis=rule.part.axis)
        except ValueError as error:
            said = f"{given[0].name}{list(held[0].shape)} does not fit its rule in {family.name}: {error}"
            raise ConversionError(said) from None

    found = places(tree, family)
    return {torch_name: whole(torch_name, [parts[part] for part in sorted(parts)]) for torch_name, parts in found.items()}


def gradients_to_torch(tree: PyTree, family: Family, parameters: Container[str]) -> dict[str, np.ndarray]:
    """Return a tree of gradients by torch's parameter names, as in `named_parameters`; tied parameters once, as the sum over
    the copies in the JAX model."""
    state, total = tensors_to_torch(tree, family), {}
    groups = {name: group for group in tied_names(family) for name in group}
    for name, array in state.items():
        there = [it for it in groups.get(name, [name]) if it in parameters]
        others = [it for it in there if it not in state]
        held = name if name in parameters else next(iter([*others, *there]), name)
        total[held] = total[held] + array if held in total else array
    return total


def sums(like: PyTree, family: Family) -> dict[str, tuple[str, ...]]:
    """Return torch tensor -> all torch tensors of its sum, for those that are added up in a tree of the shape of `like`."""
    found, family = dict[str, tuple[str, ...]](), family.sized(like)
    for name, leaf in weights_of(like, family).items():
        if (join := family.rule(name).join) and join.summed:
            for names in family.sources(name, leaf.shape[0] if family.stacked(name) else 1):
                found |= dict.fromkeys(names, names)
    return found


def to_jax(state: Mapping[str, Any], like: PyTree, family: Family, *, keep: bool = False) -> PyTree:
    """Build a tree of the shape of `like` from torch's tensors; each tensor, or part, is used exactly once, bit for bit.

    `like` may be abstract (`jax.eval_shape`). With `keep`, its leaves that hold the same bits are not copied. A tensor that
    torch ties is used for each of its copies in JAX, and has to be the same under all its names. Raises ConversionError for
    tensors that are missing, unused, or of another shape or type.
    """
    family = family.sized(like)
    wanted = places(like, family)
    arrays = {name: host(tensor) for name, tensor in state.items() if family.why_ignored(name) is None}
    arrays, misfits = _untied(arrays, wanted, family)
    read, sizes = {}, family.sizes
    for name, leaf in weights_of(like, family).items():
        shape, n_layers = (leaf.shape[1:], leaf.shape[0]) if family.stacked(name) else (leaf.shape, 1)
        one = jax.ShapeDtypeStruct(shape, leaf.dtype)
        for layer, names in enumerate(family.sources(name, n_layers)):
            if set(names) <= set(arrays):
                read[name, layer] = found = _read(name, {it: arrays[it] for it in names}, family.rule(name), one, sizes)
                misfits += [found] if isinstance(found, Misfit) else []
    if misfits or set(arrays) != set(wanted):
        raise ConversionError(mismatch(wanted, arrays, misfits))

    def build(name: str, leaf: Any) -> Any:
        if not is_weight(leaf) or name in family.constants:
            return leaf
        layers = [read[name, layer] for layer in range(leaf.shape[0] if family.stacked(name) else 1)]
        return to_device(layers, stacked=family.stacked(name), held=leaf if keep else None)

    return map_named(build, like)


def _untied(
    arrays: Mapping[str, np.ndarray], wanted: Container[str], family: Family
) -> tuple[dict[str, np.ndarray], list[Misfit]]:
    """Keep tied tensors only under the names that are wanted; report those that differ between their names."""
    arrays, misfits = {**arrays}, []
    for group in tied_names(family):
        mine, there = [name for name in group if name in wanted], [name for name in group if name in arrays]
        if not mine or not there:
            continue
        spare = [name for name in there if name not in mine]
        arrays |= {name: arrays[(spare or there)[0]] for name in mine if name not in there}
        for name in spare:
            array = arrays.pop(name)
            if not any(np.array_equal(array, arrays[it], equal_nan=True) for it in mine):
                misfits.append(parted(name, array, mine[0], arrays[mine[0]], family.name))
    return arrays, misfits


def tied_names(family: Family) -> list[list[str]]:
    """Return all names of each tensor that torch ties, the first name first."""
    groups: dict[str, list[str]] = {}
    for alias, held in family.tied.items():
        groups.setdefault(held, [held]).append(alias)
    return list(groups.values())


def places(like: PyTree, family: Family) -> dict[str, dict[Part, Place]]:
    """Return torch's names -> part -> place in a tree of the shape of `like`.

    Raises ConversionError if a tensor has no rule or is ignored, two JAX tensors share a torch name, or parts are missing.
    """
    found, family = dict[str, dict[Part, Place]](), family.sized(like)
    leaves, faults = weights_of(like, family), {}
    without = [name for name in leaves if not family.ruled(name)]
    if without:
        have = "have" if without[1:] else "has"
        faults[""] = f"{listed(without)} of the {type(like).__name__} {have} no rule in family {family.name}"
    for name in (name for name in leaves if name not in without):
        rule, leaf = family.rule(name), leaves[name]
        try:
            sources = family.sources(name, leaf.shape[0] if family.stacked(name) else 1)
        except ConversionError as error:
            faults[name] = str(error)
            continue
        for layer, names in enumerate(sources):
            for joined, torch_name in enumerate(names):
                parts = found.setdefault(torch_name, {})
                others = {family.rule(place.name).packed for place in parts.values()}
                if rule.part in parts or any(rule.part[1:] != other[1:] for other in parts) or others - {rule.packed}:
                    said = f"two tensors want the torch name {torch_name}; family {family.name} does not fit"
                    faults.setdefault(bare(torch_name), said)
                parts[rule.part] = Place(name, layer, joined)
    for torch_name, parts in found.items():
        if said := _misplaced(torch_name, parts, family):
            faults.setdefault(bare(torch_name), said)
    if faults:
        raise ConversionError(listed([*faults.values()], "; "))
    return found


def _misplaced(torch_name: str, parts: Mapping[Part, Place], family: Family) -> str:
    """Explain that a torch tensor is ignored by the family or lacks parts; "" if all is well."""
    first, place = next(iter(parts.items()))
    if (reason := family.why_ignored(torch_name)) is not None:
        return (
            f"family {family.name} ignores {torch_name} ({reason}), and the JAX model holds it as {place.name}; take it out of "
            "one of them"
        )
    if len(parts) != first.of:
        return f"{torch_name} holds {first.of} parts; the model has {len(parts)} of them, first {place.name}"
    return ""


def _read(
    name: str, arrays: Mapping[str, np.ndarray], rule: Rule, wanted: jax.ShapeDtypeStruct, sizes: Sizes
) -> np.ndarray | Misfit:
    """Convert a torch tensor, or several that are joined, to one layer of a JAX tensor."""
    called, shape, dtype, held = " + ".join(arrays), wanted.shape, wanted.dtype, [*arrays.values()]
    found, wants = " + ".join(f"{array.dtype}{list(array.shape)}" for array in held), f"{dtype}{list(shape)}"
    try:
        layer = rule.to_jax(rule.join.together(held, sizes) if rule.join else held[0], sizes, shape)
    except ValueError as error:
        return Misfit(f"{called} is {found}; {name}, {wants}, cannot be made of it: {error}")
    if layer.shape == shape and layer.dtype == dtype:
        return layer
    says = f"{called} is {layer.dtype}{list(layer.shape)} as {name}; the model wants {wants}"
    off = off_shape(layer.shape, shape, rule.layout) if layer.shape != shape else off_type(layer.dtype, dtype)
    return Misfit(says, off)
