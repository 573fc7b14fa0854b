"""A family of checkpoints is a table of rules. One table gives both directions, for weights, gradients and moments alike."""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.errors import ConversionError
from jaxformer.nn.tree import map_named, named_leaves


@dataclass(frozen=True)
class Rule:
    """`jax` and `torch` are the last parts of a tensor's two names; a transpose is its own inverse."""

    jax: str
    torch: str
    layout: Literal["same", "transposed"] = "same"

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The tensor in the other framework's layout."""
        return array.T if self.layout == "transposed" else array


@dataclass(frozen=True)
class Family:
    """How one kind of torch checkpoint relates to a jaxformer model."""

    name: str
    stacks: Mapping[str, str]
    """Start of a stacked JAX name -> start of the torch names, with `{layer}`."""
    rules: tuple[Rule, ...]

    def torch_names(self, name: str, n_layers: int) -> list[str]:
        """Where a JAX tensor lives in torch: one name, or one for each layer."""
        rule = self.rule(name)
        stem = name.removesuffix(rule.jax)
        for start, torch_start in self.stacks.items():
            if stem.startswith(start):
                rest = stem.removeprefix(start) + rule.torch
                return [torch_start.format(layer=layer) + rest for layer in range(n_layers)]
        return [stem + rule.torch]

    def stacked(self, name: str) -> bool:
        """Whether a JAX tensor carries a layer axis."""
        return name.startswith(tuple(self.stacks))

    def rule(self, name: str) -> Rule:
        """The first rule for a JAX tensor."""
        for rule in self.rules:
            if f".{name}".endswith(f".{rule.jax}"):
                return rule
        raise ConversionError(f"{name} has no rule in family {self.name}")


def to_torch(tree: PyTree, family: Family) -> dict[str, np.ndarray]:
    """Every tensor of a JAX model, or of a tree of its shape, under torch's names and in torch's layout."""
    state: dict[str, np.ndarray] = {}
    for name, leaf in named_leaves(tree).items():
        array, rule = np.asarray(leaf), family.rule(name)
        layers = list(array) if family.stacked(name) else [array]
        for torch_name, layer in zip(family.torch_names(name, len(layers)), layers, strict=True):
            if torch_name in state:
                raise ConversionError(f"two tensors want the torch name {torch_name}; family {family.name} does not fit")
            state[torch_name] = np.array(rule.apply(layer), order="C")
    return state


def to_jax(state: Mapping[str, Any], like: PyTree, family: Family) -> PyTree:
    """A tree of the shape of `like` from torch's tensors, each used exactly once, bit for bit.

    `like` may be abstract (`jax.eval_shape`). Raises ConversionError for a tensor missing, left over, or of
    another shape or type.
    """
    arrays = {name: _to_numpy(tensor) for name, tensor in state.items()}
    wanted = dict(_wanted(like, family))
    left_over = sorted(set(arrays) - set(wanted))
    missing = sorted(set(wanted) - set(arrays))
    if missing or left_over:
        raise ConversionError(_mismatch(missing, left_over))

    def build(name: str, leaf: Any) -> jax.Array:
        rule, stacked = family.rule(name), family.stacked(name)
        shape = leaf.shape[1:] if stacked else leaf.shape
        layers = []
        for torch_name in family.torch_names(name, leaf.shape[0] if stacked else 1):
            layer = rule.apply(arrays[torch_name])
            if layer.shape != shape or layer.dtype != leaf.dtype:
                found, wanted = f"{layer.dtype}{list(layer.shape)}", f"{leaf.dtype}{list(shape)}"
                raise ConversionError(f"{torch_name} is {found} as {name}; the model wants {wanted}")
            layers.append(layer)
        return jnp.asarray(np.stack(layers) if stacked else layers[0])

    return map_named(build, like)


def _wanted(like: PyTree, family: Family) -> Iterator[tuple[str, str]]:
    for name, leaf in named_leaves(like).items():
        for torch_name in family.torch_names(name, leaf.shape[0] if family.stacked(name) else 1):
            yield torch_name, name


def _mismatch(missing: list[str], left_over: list[str]) -> str:
    parts = []
    if missing:
        near = difflib.get_close_matches(missing[0], left_over, 1)
        parts.append(f"{len(missing)} missing, first {missing[0]}" + (f" (is it {near[0]}?)" if near else ""))
    if left_over:
        parts.append(f"{len(left_over)} left over, first {left_over[0]}")
    return "tensors do not match the model: " + "; ".join(parts)


def _to_numpy(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy() if hasattr(tensor, "detach") else np.asarray(tensor)
