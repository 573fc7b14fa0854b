"""A family of checkpoints is a table of rules. One table gives both directions, for weights, gradients and moments alike."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.errors import ConversionError
from jaxformer.nn.tree import is_weight, map_named, named_weights

LISTED = 3
"""How many names an error lists before it only counts them."""


class Part(NamedTuple):
    """One of several equal parts of a torch tensor, cut along an axis: torch packs queries, keys and values so."""

    number: int = 0
    of: int = 1
    axis: int = 0

    def cut(self, array: np.ndarray) -> np.ndarray:
        """It, of the whole tensor; ValueError where that has no such parts."""
        return np.split(array, self.of, self.axis)[self.number] if self.of > 1 else array


WHOLE = Part()


@dataclass(frozen=True)
class Axes:
    """torch's axes split, put in another order and merged again are ours: flax's `DenseGeneral` has (D, N, H) for (NH, D)."""

    torch: tuple[int, ...]
    """torch's shape."""
    split: tuple[int, ...]
    """The same with some axes cut in two."""
    order: tuple[int, ...]
    """Which of those comes first, second, ... in JAX."""
    jax: tuple[int, ...]
    """Our shape: those, some merged."""

    def to_jax(self, array: np.ndarray) -> np.ndarray:
        """ValueError for another shape."""
        if array.shape != self.torch:
            raise ValueError(f"shape {list(array.shape)}, not {list(self.torch)}")
        return array.reshape(self.split).transpose(self.order).reshape(self.jax)

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """The inverse."""
        ordered = array.reshape([self.split[axis] for axis in self.order])
        return ordered.transpose(np.argsort(self.order)).reshape(self.torch)


Layout = Literal["same", "transposed"] | Axes


@dataclass(frozen=True)
class Rule:
    """`jax` and `torch` are the last parts of a tensor's two names."""

    jax: str
    torch: str | tuple[str, ...]
    """A tuple names each layer of a stacked tensor in full."""
    layout: Layout = "same"
    part: Part = WHOLE
    """Which part of torch's tensor it is."""

    def to_jax(self, array: np.ndarray) -> np.ndarray:
        """Our tensor, of torch's whole one; ValueError where it cannot be cut or laid out so."""
        array = self.part.cut(array)
        if isinstance(self.layout, Axes):
            return self.layout.to_jax(array)
        return array.T if self.layout == "transposed" else array

    def to_torch(self, array: np.ndarray) -> np.ndarray:
        """The inverse: torch's part."""
        if isinstance(self.layout, Axes):
            return self.layout.to_torch(array)
        return array.T if self.layout == "transposed" else array


@dataclass(frozen=True)
class Family:
    """How one kind of torch checkpoint relates to a JAX model."""

    name: str
    stacks: Mapping[str, str]
    """Start of a JAX name -> start of its torch names. One with `{layer}` is that of a stack; another is only a name. Of
    several that fit, the longest counts."""
    rules: tuple[Rule, ...]
    """The first that fits a name counts. One that spells out a stacked JAX name has `{layer}` in its torch name."""
    constants: frozenset[str] = frozenset()
    """Float arrays of the JAX model, by their whole names, that are no weights: they stay as they are."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """torch name of a JAX tensor -> the name under which torch holds it: torch ties what JAX has twice."""

    def torch_names(self, name: str, n_layers: int) -> list[str]:
        """Where a JAX tensor lives in torch: one name, or one for each layer."""
        rule = self.rule(name)
        if isinstance(rule.torch, tuple):
            if len(rule.torch) != n_layers:
                raise ConversionError(f"{name} has {n_layers} layers; family {self.name} has {len(rule.torch)}")
            return list(rule.torch)
        stem = name.removesuffix(rule.jax)
        start = self.start(stem)
        torch_name = stem + rule.torch if start is None else self.stacks[start] + stem.removeprefix(start) + rule.torch
        return [torch_name.format(layer=layer) for layer in range(n_layers)] if self.stacked(name) else [torch_name]

    def start(self, name: str) -> str | None:
        """The start of a JAX name that counts."""
        return max((start for start in self.stacks if name.startswith(start)), key=len, default=None)

    def stacked(self, name: str) -> bool:
        """Whether a JAX tensor carries a layer axis."""
        start = self.start(name)
        return start is not None and "{layer}" in self.stacks[start]

    def rule(self, name: str) -> Rule:
        """The first rule for a JAX tensor."""
        for rule in self.rules:
            if f".{name}".endswith(f".{rule.jax}"):
                return rule
        raise ConversionError(f"{name} has no rule in family {self.name}")


class Place(NamedTuple):
    """Where the numbers of a torch tensor, or of a part of it, are in a JAX tree."""

    name: str
    layer: int
    """0 where it carries no layer axis."""


def weights_of(tree: PyTree, family: Family) -> dict[str, Any]:
    """Every float leaf by its name, but for the model's constants."""
    return {name: leaf for name, leaf in named_weights(tree).items() if name not in family.constants}


def to_torch(tree: PyTree, family: Family) -> dict[str, np.ndarray]:
    """Every tensor of a JAX model, or of a tree of its shape, under torch's names and in torch's layout."""
    arrays = {name: np.asarray(leaf) for name, leaf in weights_of(tree, family).items()}

    def piece(place: Place) -> np.ndarray:
        array = arrays[place.name]
        return family.rule(place.name).to_torch(array[place.layer] if family.stacked(place.name) else array)

    state = {}
    for torch_name, parts in places(tree, family).items():
        pieces = [piece(place) for _, place in sorted(parts.items())]
        whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=next(iter(parts)).axis)
        state[torch_name] = np.array(whole, order="C")
    return state


def to_jax(state: Mapping[str, Any], like: PyTree, family: Family) -> PyTree:
    """A tree of the shape of `like` from torch's tensors, each, or each part, used exactly once, bit for bit.

    `like` may be abstract (`jax.eval_shape`). What torch ties is used by each of its copies. Raises ConversionError for a
    tensor missing, left over, or of another shape or type.
    """
    arrays = {name: _to_numpy(tensor) for name, tensor in state.items()}
    wanted = places(like, family)
    copies = {name: held for name, held in family.tied.items() if name in wanted and held in arrays}
    arrays |= {name: arrays[held] for name, held in copies.items()}
    left_over = sorted(set(arrays) - set(wanted) - set(copies.values()))
    missing = sorted(set(wanted) - set(arrays))
    if missing or left_over:
        raise ConversionError(_mismatch(missing, left_over))

    def build(name: str, leaf: Any) -> Any:
        if not is_weight(leaf) or name in family.constants:
            return leaf
        stacked = family.stacked(name)
        shape, n_layers = (leaf.shape[1:], leaf.shape[0]) if stacked else (leaf.shape, 1)
        names = family.torch_names(name, n_layers)
        layers = [_read(name, torch_name, arrays[torch_name], family.rule(name), shape, leaf.dtype) for torch_name in names]
        return jnp.asarray(np.stack(layers) if stacked else layers[0])

    return map_named(build, like)


def summed(gradients: Mapping[str, np.ndarray], family: Family) -> dict[str, np.ndarray]:
    """Gradients as torch has them: one for what it ties, the sum over the copies."""
    total: dict[str, np.ndarray] = {}
    for name, array in gradients.items():
        held = family.tied.get(name, name)
        total[held] = total[held] + array if held in total else array
    return total


def places(like: PyTree, family: Family) -> dict[str, dict[Part, Place]]:
    """torch's names, and of each part where it is in a tree of the shape of `like`.

    Raises ConversionError where two JAX tensors want the same, or parts are missing.
    """
    found: dict[str, dict[Part, Place]] = {}
    for name, leaf in weights_of(like, family).items():
        part = family.rule(name).part
        for layer, torch_name in enumerate(family.torch_names(name, leaf.shape[0] if family.stacked(name) else 1)):
            parts = found.setdefault(torch_name, {})
            if part in parts or any(part[1:] != other[1:] for other in parts):
                raise ConversionError(f"two tensors want the torch name {torch_name}; family {family.name} does not fit")
            parts[part] = Place(name, layer)
    for torch_name, parts in found.items():
        first, place = next(iter(parts.items()))
        if len(parts) != first.of:
            raise ConversionError(
                f"{torch_name} holds {first.of} parts; the model has {len(parts)} of them, first {place.name}"
            )
    return found


def _read(name: str, torch_name: str, array: np.ndarray, rule: Rule, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """torch's tensor as ours, of this shape and type."""
    found, wanted = f"{array.dtype}{list(array.shape)}", f"{dtype}{list(shape)}"
    try:
        layer = rule.to_jax(array)
    except ValueError as error:
        raise ConversionError(f"{torch_name} is {found}; {name}, {wanted}, cannot be made of it: {error}") from None
    if layer.shape != shape or layer.dtype != dtype:
        found = f"{layer.dtype}{list(layer.shape)}"
        raise ConversionError(f"{torch_name} is {found} as {name}; the model wants {wanted}")
    return layer


def _mismatch(missing: list[str], left_over: list[str]) -> str:
    def nearest(name: str) -> str:
        near = difflib.get_close_matches(name, left_over, 1)
        return f"{name} (is it {near[0]}?)" if near else name

    parts = []
    if missing:
        parts.append(f"{len(missing)} missing, first {', '.join(map(nearest, missing[:LISTED]))}")
    if left_over:
        parts.append(f"{len(left_over)} left over, first {', '.join(left_over[:LISTED])}")
    return "tensors do not match the model: " + "; ".join(parts)


def _to_numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
