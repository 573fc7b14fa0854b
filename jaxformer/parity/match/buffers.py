"""Float arrays of a JAX model that are no weights: torch's buffers, as running statistics and tables, and its own constants."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from jaxformer.convert.layouts import same_numbers
from jaxformer.convert.mismatch import listed
from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.capture.module_paths import last
from jaxformer.parity.match.candidates import torch_names
from jaxformer.parity.match.names import Homes, nearest_pairs, twins
from jaxformer.parity.numerics.float32_tables import is_rounded, most_off, say_rounded
from jaxformer.parity.numerics.metrics import distance
from jaxformer.pytree import map_named, path_name

SWITCHES = 2
"""So many numbers make a mask, whose sense is the model's own."""


@dataclass
class Constants:
    """What was found out."""

    names: set[str] = field(default_factory=set)
    """Of JAX arrays that are no weights."""
    values: dict[str, np.ndarray] = field(default_factory=dict)
    """torch's, where they are others."""
    equal: list[str] = field(default_factory=list)
    """Of torch's buffers, what is said of them."""
    rounded: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)
    """JAX names of what torch has not."""
    held: set[str] = field(default_factory=set)
    """torch's buffers that differ from their partners."""
    missing: dict[str, np.ndarray] = field(default_factory=dict)
    """torch's buffers that JAX does not hold: its code may compute them."""

    def pair(self, name: str, ours: np.ndarray, buffer: str, theirs: np.ndarray) -> None:
        """Judge two that are the same; torch's values have our shape."""
        self.names.add(name)
        if np.array_equal(ours, theirs, equal_nan=True):
            self.equal += buffer.split(", ")
            return
        self.values[name] = theirs.astype(ours.dtype)
        self.held |= set(buffer.split(", "))
        if is_rounded(ours, theirs):
            self.rounded.append(f"buffer {buffer} {say_rounded(most_off(ours, theirs))}")
        else:
            self.wrong.append(f"buffer {buffer} differs from {name} (relL2 {distance(ours, theirs):.1e})")

    def without_buffers(self, found: Mapping[str, Rule], buffers: Container[str]) -> dict[str, Rule]:
        """The rules of weights; what holds a buffer's values is noted."""
        for name, rule in found.items():
            if all(it in buffers for it in torch_names(rule)):
                self.names.add(name)
                self.equal += torch_names(rule)
        return {name: rule for name, rule in found.items() if name not in self.names}

    def search(
        self, left: Mapping[str, np.ndarray], buffers: Mapping[str, np.ndarray], homes: Homes, typed: set[str], *, short: bool
    ) -> None:
        """What is no weight: those that hold a buffer's values, or nearly so, or lie where it does; of the rest, those of
        such a type are the model's own. `short`: torch's weights are short of partners, so only these lie with buffers."""
        for name, ours in left.items():
            plain = name in typed or (ours.size and (ours != ours.flat[0]).any())
            alike = {key: it for key, it in buffers.items() if plain or twins(last(name), last(key))}
            found = next((key for key, it in alike.items() if it.dtype == ours.dtype and same_numbers(it, ours)), None)
            near = {key: distance(ours, shaped) for key, it in alike.items() if (shaped := fitted(it, ours)) is not None}
            best = min(near, key=near.__getitem__, default=None)
            if found is not None:
                self.names.add(name)
                self.equal.append(found)
            elif best is not None and is_rounded(ours, buffers[best].reshape(ours.shape)):
                self.pair(name, ours, best, buffers[best].reshape(ours.shape))
        free = {name: ours for name, ours in left.items() if name not in self.names}
        unused = {key: theirs for key, theirs in buffers.items() if key not in self.equal}
        self.pair_placed({name: free[name] for name in free if name in typed or not short}, unused, homes)
        self.own += [name for name in free if name in typed and name not in self.names]
        self.names |= set(self.own)

    def pair_placed(self, ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], homes: Homes) -> None:
        """Those of which places and shapes leave no doubt."""
        for name, key in placed(ours, theirs, homes):
            self.pair(name, ours[name], key, theirs[key].reshape(ours[name].shape))

    def leave(self, buffers: Mapping[str, np.ndarray]) -> None:
        """What is missing once all was paired; of two that are the same, JAX needs to hold one."""
        known = {*self.equal, *self.held} & set(buffers)
        left = {key: table for key, table in buffers.items() if key not in known}
        self.missing = {key: it for key, it in left.items() if not any(same_numbers(it, buffers[other]) for other in known)}

    def put(self, tree: PyTree) -> PyTree:
        """The model with torch's values."""
        if not self.values:
            return tree
        return map_named(lambda name, leaf: jnp.asarray(self.values[name]) if name in self.values else leaf, tree)

    def says(self, rules: Family) -> list[str]:
        """In words, for the line of the weights."""
        same = len(set(self.equal))
        lines = [f"{same} buffer{'s' if same > 1 else ''} equal"] if same else []
        lines += [f"{said}; torch's is used below" for said in dict.fromkeys((*self.rounded, *self.wrong))]
        lines += [f"the JAX model's own constants, left as they are: {listed(self.own)}"] if self.own else []
        ignored: dict[str, list[str]] = {}
        for name in self.missing:
            if (reason := rules.why_ignored(name)) is not None:
                ignored.setdefault(reason, []).append(name)
        lines += [f"ignored: {listed(names)} ({reason})" for reason, names in ignored.items()]
        free = {name: it for name, it in self.missing.items() if rules.why_ignored(name) is None}
        told = [name for name, buffer in free.items() if buffer.ndim < 2 or not switches(buffer)]
        return lines + ([f"torch's buffers that JAX does not hold: {listed(told)}"] if told else [])


def placed(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], homes: Homes) -> list[tuple[str, str]]:
    """Pairs without doubt: of one shape, and the only ones of it, or of names that say so. Masks of two numbers are none."""
    fits = {(a, b) for a in ours for b in theirs if fitted(theirs[b], ours[a]) is not None}
    fits -= {(a, b) for a, b in fits if switches(ours[a]) and switches(theirs[b])}
    pairs = nearest_pairs(list(ours), list(theirs), homes, fits)
    return [(a, b) for a, b in pairs if alone((a, b), fits) or twins(last(a), last(b))]


def alone(pair: tuple[str, str], among: Iterable[tuple[str, str]]) -> bool:
    """Whether nothing else fits either."""
    return not any(pair != other and (pair[0] == other[0] or pair[1] == other[1]) for other in among)


def typed_constants(tree: PyTree) -> set[str]:
    """Names of what is no weight by its type: Linen's other collections, NNX variables that are no parameters, and plain
    arrays that a module holds."""
    if isinstance(tree, Mapping) and "params" in tree:
        return {name for name in _named(tree, lambda leaf: False) if not name.startswith("params.")}
    leaves = _named(tree, lambda leaf: isinstance(leaf, nnx.Variable))
    module = isinstance(tree, nnx.Module)
    return {
        name for name, leaf in leaves.items() if not isinstance(leaf, nnx.Param) and (module or isinstance(leaf, nnx.Variable))
    }


def _named(tree: PyTree, is_leaf: Callable[[Any], bool]) -> dict[str, Any]:
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]}


def fitted(theirs: np.ndarray, ours: np.ndarray) -> np.ndarray | None:
    """torch's values in our shape, where only axes of one entry are others."""
    same = [n for n in theirs.shape if n > 1] == [n for n in ours.shape if n > 1]
    return theirs.reshape(ours.shape) if same else None


def switches(array: np.ndarray) -> bool:
    """Whether it holds no more than two numbers."""
    return len(np.unique(array)) <= SWITCHES
