"""Float arrays of a JAX model that are not weights: torch's buffers (running statistics, tables) and the model's constants."""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from jaxformer.convert.layouts import same_numbers
from jaxformer.convert.rules import Family, Rule
from jaxformer.errors import listed
from jaxformer.parity.numerics.axis_order import orders_for
from jaxformer.parity.numerics.float32_tables import is_rounded, most_off, say_rounded
from jaxformer.parity.numerics.float_masks import kind_of
from jaxformer.parity.numerics.metrics import distance
from jaxformer.parity.pairing.names import ModuleMap, nearest_pairs, only_pair, same_word
from jaxformer.parity.pairing.rules import torch_names
from jaxformer.parity.report.text import count
from jaxformer.parity.trace.call_sites import below, last
from jaxformer.parity.trace.torch_hooks import Arrays
from jaxformer.pytree import map_named, named_leaves, path_name


def pair_statistics(
    torch: Mapping[str, tuple[int, ...]], tree: PyTree, constants: Container[str], parameters: Mapping[str, str]
) -> dict[str, str]:
    """Pair jax's `constants` with torch's buffers, given by their shapes: the nearest by module and name.

    `parameters` maps names of jax's parameters to torch's; it tells which modules correspond. Returns jax's name -> torch's.
    """
    named = {path_of(name, tree): leaf for name, leaf in named_leaves(tree).items() if name in constants}
    fits = {(name, key) for name, leaf in named.items() for key, shape in torch.items() if orders_for(shape, leaf.shape)}
    worded = {(name, key) for name, key in fits if same_word(last(name), last(key))}
    modules, pairs = ModuleMap(parameters), dict[str, str]()
    for some in (worded, fits):
        left = [key for key in torch if key not in pairs.values()]
        pairs |= dict(nearest_pairs([name for name in named if name not in pairs], left, modules, some))
    return pairs


def path_of(name: str, tree: PyTree) -> str:
    """Strip the collection from a name, in Linen's variables and other mappings that hold 'params' beside a state."""
    return name.partition(".")[2] if isinstance(tree, Mapping) and "params" in tree else name


MASK_VALUES = 2
"""Number of distinct values up to which an array counts as a mask; which values a mask uses is the model's own choice."""


@dataclass
class Constants:
    """Findings about JAX arrays that are not weights."""

    names: set[str] = field(default_factory=set)
    """JAX names of these arrays."""
    values: dict[str, np.ndarray] = field(default_factory=dict)
    """torch's values of the arrays that differ, by JAX name."""
    equal: list[str] = field(default_factory=list)
    """torch's buffers that JAX holds with equal values."""
    differing: set[str] = field(default_factory=set)
    """torch's buffers that JAX holds with other values."""
    rounded: list[str] = field(default_factory=list)
    """Notes on buffers that differ by rounding only."""
    wrong: list[str] = field(default_factory=list)
    """Notes on buffers that differ by more than rounding."""
    own: list[str] = field(default_factory=list)
    """JAX names of constants that torch does not have."""
    missing: dict[str, np.ndarray] = field(default_factory=dict)
    """torch's buffers that JAX does not hold; JAX's code may compute them."""

    def pair(self, name: str, ours: np.ndarray, buffer: str, theirs: np.ndarray) -> None:
        """Compare a JAX array with the buffer that it is paired with; `theirs` has JAX's shape."""
        self.names.add(name)
        if np.array_equal(ours, theirs, equal_nan=True):
            self.equal += buffer.split(", ")
            return
        self.values[name] = theirs.astype(ours.dtype)
        self.differing |= set(buffer.split(", "))
        if is_rounded(ours, theirs):
            self.rounded.append(f"buffer {buffer} {say_rounded(most_off(ours, theirs))}")
        else:
            other = "" if name == buffer else f" from {name}"
            self.wrong.append(f"buffer {buffer} differs{other} (relL2 {distance(ours, theirs):.1e})")

    def without_buffers(self, found: Mapping[str, Rule], buffers: Container[str]) -> dict[str, Rule]:
        """Return the rules that lead to weights; note JAX tensors that hold a buffer's values."""
        for name, rule in found.items():
            if all(it in buffers for it in torch_names(rule)):
                self.names.add(name)
                self.equal += torch_names(rule)
        return {name: rule for name, rule in found.items() if name not in self.names}

    def pair_left(self, left: Arrays, buffers: Arrays, modules: ModuleMap, typed: set[str], *, short: bool) -> None:
        """Pair the remaining JAX arrays with buffers: by equal values, by values equal up to rounding, by shape and name.

        Unpaired arrays of `typed` are the model's own constants. `short`: some of torch's weights have no partner, so a JAX
        array may be a weight, and only arrays of `typed` are paired by name.
        """
        for name, ours in left.items():
            varied = name in typed or (ours.size and (ours != ours.flat[0]).any())
            likely = {key: it for key, it in buffers.items() if varied or same_word(last(name), last(key))}
            shaped = {key: it for key, buffer in likely.items() if (it := reshaped(buffer, ours)) is not None}
            nearest = min(shaped, key=lambda key: distance(ours, shaped[key]), default=None)
            same = next((key for key, it in likely.items() if it.dtype == ours.dtype and same_numbers(it, ours)), None)
            if same is not None:
                self.names.add(name)
                self.equal.append(same)
            elif nearest is not None and is_rounded(ours, shaped[nearest]):
                self.pair(name, ours, nearest, shaped[nearest])
        free = {name: ours for name, ours in left.items() if name not in self.names}
        unused = {key: theirs for key, theirs in buffers.items() if key not in self.equal}
        self.pair_by_place({name: free[name] for name in free if name in typed or not short}, unused, modules)
        self.own += [name for name in free if name in typed and name not in self.names]
        self.names |= set(self.own)

    def pair_by_path(self, ours: Arrays, theirs: Arrays, tree: PyTree) -> None:
        """Pair arrays of one path and shape, whatever their values, but for masks: which numbers these hold is free."""
        for name, array in ours.items():
            buffer = theirs.get(path := path_of(name, tree))
            if (
                buffer is not None
                and buffer.shape == array.shape
                and not (array.ndim > 1 and kind_of(array) and kind_of(buffer))
            ):
                self.pair(name, array, path, buffer)

    def pair_by_place(self, ours: Arrays, theirs: Arrays, modules: ModuleMap) -> None:
        """Pair arrays of one shape if no other array has that shape, or if their names agree. Masks are not paired."""
        fits = {(a, b) for a in ours for b in theirs if reshaped(theirs[b], ours[a]) is not None}
        fits -= {(a, b) for a, b in fits if is_mask(ours[a]) and is_mask(theirs[b])}
        for name, key in nearest_pairs(list(ours), list(theirs), modules, fits):
            if only_pair((name, key), fits) or same_word(last(name), last(key)):
                self.pair(name, ours[name], key, theirs[key].reshape(ours[name].shape))

    def note_missing(self, buffers: Arrays) -> None:
        """Note torch's buffers that JAX does not hold, after pairing; of two equal buffers JAX needs to hold one."""
        known = {*self.equal, *self.differing} & set(buffers)
        left = {key: table for key, table in buffers.items() if key not in known}
        self.missing = {key: it for key, it in left.items() if not any(same_numbers(it, buffers[other]) for other in known)}

    def put(self, tree: PyTree) -> PyTree:
        """Return the model with torch's values in its buffers."""
        if not self.values:
            return tree
        return map_named(lambda name, leaf: jnp.asarray(self.values[name]) if name in self.values else leaf, tree)

    def notes(self, rules: Family) -> list[str]:
        """Describe the findings, for the check of weights."""
        same = len(set(self.equal))
        lines = [f"{count(same, 'buffer')} equal"] if same else []
        lines += [f"{note}; torch's is used below" for note in dict.fromkeys((*self.rounded, *self.wrong))]
        lines += [f"the JAX model's own constants, left as they are: {listed(self.own)}"] if self.own else []
        ignored: dict[str, list[str]] = {}
        for name in self.missing:
            if (reason := rules.why_ignored(name)) is not None:
                ignored.setdefault(reason, []).append(name)
        lines += [f"ignored: {listed(names)} ({reason})" for reason, names in ignored.items()]
        free = {name: it for name, it in self.missing.items() if rules.why_ignored(name) is None}
        lost = [name for name, buffer in free.items() if buffer.ndim < 2 or not is_mask(buffer)]
        return lines + ([f"torch's buffers that JAX does not hold: {listed(lost)}"] if lost else [])


def typed_constants(tree: PyTree) -> set[str]:
    """Find the names of arrays that are not weights by their type.

    These are Linen's other collections, NNX variables that are not parameters, plain arrays held by an NNX module, and the
    contents of an Equinox State.
    """
    if isinstance(tree, Mapping) and "params" in tree:
        return {name for name in _named(tree, lambda leaf: False) if not name.startswith("params.")}
    leaves = _named(tree, lambda leaf: isinstance(leaf, nnx.Variable))
    module = isinstance(tree, nnx.Module)
    states = [name for name, leaf in _named(tree, is_state).items() if is_state(leaf)]
    return {name for name in leaves if any(below(name, state) for state in states)} | {
        name for name, leaf in leaves.items() if not isinstance(leaf, nnx.Param) and (module or isinstance(leaf, nnx.Variable))
    }


def is_state(node: Any) -> bool:
    """True if the node is Equinox's State: running statistics and tables that are kept beside a model."""
    kind = type(node)
    return kind.__name__ == "State" and kind.__module__.startswith("equinox.")


def _named(tree: PyTree, is_leaf: Callable[[Any], bool]) -> dict[str, Any]:
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]}


def reshaped(theirs: np.ndarray, ours: np.ndarray) -> np.ndarray | None:
    """Reshape torch's values to JAX's shape if the two shapes differ only in axes of size 1; None if they differ otherwise."""
    same = [n for n in theirs.shape if n > 1] == [n for n in ours.shape if n > 1]
    return theirs.reshape(ours.shape) if same else None


def is_mask(array: np.ndarray) -> bool:
    """True if the array holds at most two distinct values."""
    return len(np.unique(array)) <= MASK_VALUES
