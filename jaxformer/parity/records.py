"""What went in and out of a module's calls, and the gradients that came back: torch's side as plain arrays."""

import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import jax
import numpy as np
from flax import linen

from jaxformer.parity.watch import Site


@dataclass(frozen=True)
class Record:
    """One call: the different arrays of its arguments in their order, and those of what it gives; whatever is no array is
    left out. A gradient is None where none came back, or none was asked for."""

    inputs: tuple[np.ndarray, ...]
    output: tuple[np.ndarray, ...]
    input_gradients: tuple[np.ndarray | None, ...] = ()
    """What this call alone sends back to each of its inputs."""
    output_gradients: tuple[np.ndarray | None, ...] = ()
    """What comes back to each array that it gives, from everywhere."""


Trace = Mapping[Site, Record]
"""In the order in which calls end."""


def is_array(value: Any) -> bool:
    """Of either framework."""
    return isinstance(value, (np.ndarray, jax.Array)) or hasattr(value, "detach")


def arrays_in(value: Any) -> list[Any]:
    """The arrays of an argument or a result, those in lists, tuples and dicts among them; each once."""
    found: dict[int, Any] = {}
    _visit(value, lambda array: found.setdefault(id(array), array))
    return list(found.values())


def replaced(value: Any, old: list[Any], new: list[Any]) -> Any:
    """The same argument or result with other arrays, wherever the old ones stand."""
    by_identity = {id(array): other for array, other in zip(old, new, strict=True)}
    return _visit(value, lambda array: by_identity[id(array)])


def split_or_merged(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether one of two shapes has the other's axes cut into several."""
    few, many = sorted((one, other), key=len)
    bounds = set(itertools.accumulate(many, operator.mul))
    return len(few) < len(many) and len(few) > 1 and set(itertools.accumulate(few, operator.mul)) <= bounds


def aligned(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """torch's array in our shape; as it is where it does not fit."""
    axes = axes_for(array, shape)
    return array if axes is None else array.transpose(axes).reshape(shape)


def _visit(value: Any, f: Callable[[Any], Any]) -> Any:
    if is_array(value):
        return f(value)
    if is_dataclass(value) and not isinstance(value, (type, linen.Module)):
        names = [each.name for each in fields(value) if each.init]
        items = {name: _visit(getattr(value, name), f) for name in names}
        return replace(value, **items) if any(items[name] is not getattr(value, name) for name in names) else value
    if isinstance(value, dict):
        items = {name: _visit(item, f) for name, item in value.items()}
        return items if type(value) is dict else type(value)(**items)
    if isinstance(value, (list, tuple)):
        items = [_visit(item, f) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def axes_for(array: np.ndarray, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of torch's axes that gives our shape: as it is, with axes split or merged (heads, say), or the only one that
    fits; None where there is none."""
    if array.shape == tuple(shape) or split_or_merged(array.shape, tuple(shape)):
        return tuple(range(array.ndim))
    if array.ndim != len(shape) or array.ndim > 5:
        return None
    orders = [
        order
        for order in itertools.permutations(range(array.ndim))
        if tuple(array.shape[axis] for axis in order) == tuple(shape)
    ]
    return orders[0] if len(orders) == 1 else None
