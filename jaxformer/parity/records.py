"""What went in and out of a module's calls, and the gradients that came back: torch's side as plain arrays."""

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
