"""Inputs, outputs and gradients of a module's calls as plain arrays; attention's scores and weights among them."""

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

import jax
import numpy as np
from flax import linen, nnx

from jaxformer.parity.numerics.axis_order import order_of, to_torch_axes
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.trace.call_sites import ATTENTION, Site, join, last, parent
from jaxformer.parity.trace.pytree_modules import is_module


@dataclass(frozen=True)
class Record:
    """One call: the different arrays of its arguments in their order, and those of its output; whatever is not an array is
    left out. A gradient is None where there is none, or none was asked for."""

    inputs: tuple[np.ndarray, ...]
    output: tuple[np.ndarray, ...]
    input_gradients: tuple[np.ndarray | None, ...] = ()
    """Of each input, through this call alone."""
    output_gradients: tuple[np.ndarray | None, ...] = ()
    """Of each array of the output, from all that uses it."""


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


def named_arrays(value: Any, name: str = "") -> dict[str, Any]:
    """The arrays of a result by where they stand in it: 'logits', 'states.0'; '' for one by itself."""
    if is_array(value):
        return {name: value}
    inner = (named_arrays(item, f"{name}.{key}" if name else str(key)) for key, item in _items(value).items())
    return {path: array for arrays in inner for path, array in arrays.items()}


def names_in(value: Any) -> list[str]:
    """What the parts of a dict, a named tuple or a dataclass are called; none of anything else."""
    named = isinstance(value, Mapping) or is_dataclass(value)
    return list(map(str, _items(value))) if named else list(getattr(value, "_fields", ()))


def replaced(value: Any, old: list[Any], new: list[Any]) -> Any:
    """The same argument or result with other arrays, wherever the old ones stand."""
    by_identity = {id(array): other for array, other in zip(old, new, strict=True)}
    return _visit(value, lambda array: by_identity[id(array)])


def copied(value: Any) -> Any:
    """The same with copies of its tensors, which are torch's."""
    arrays = arrays_in(value)
    return replaced(value, arrays, [array.clone() for array in arrays])


def _visit(value: Any, f: Callable[[Any], Any]) -> Any:
    """What does not hold an array that f changes is returned as it is: a shape, a range, a model."""
    if is_array(value):
        return f(value)
    items = _items(value)
    changed = {name: other for name, item in items.items() if (other := _visit(item, f)) is not item}
    return _with(value, items, changed) if changed else value


def _items(value: Any) -> dict[Any, Any]:
    """What lists, tuples, dicts and dataclasses hold; nothing of anything else."""
    if isinstance(value, (type, linen.Module, nnx.Module)) or is_module(value):
        return {}
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)}
    if isinstance(value, Mapping):
        return dict(value)
    return dict(enumerate(value)) if isinstance(value, (list, tuple)) else {}


def _with(value: Any, items: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    """A container of the same type, whatever its constructor wants, with some items changed."""
    if isinstance(value, tuple):
        every = [changed.get(i, item) for i, item in items.items()]
        return type(value)(every) if hasattr(value, "n_sequence_fields") else tuple.__new__(type(value), every)
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return cast(Any, type(value))(items | changed)
    other = copy.copy(value)
    for name, item in changed.items():
        if is_dataclass(value):
            object.__setattr__(other, name, item)  # frozen ones too
        if not is_dataclass(value) or (isinstance(value, Mapping) and name in value):
            cast(Any, other)[name] = item
    return other


TINY = float(np.finfo(np.float32).tiny)
"""A larger weight does not underflow, not even in float32."""


def is_attention(site: Site, record: Record) -> bool:
    """Whether a call of torch's is not a module, but attention scores or weights."""
    return last(site.path) in ATTENTION and not record.inputs


def valid_entries(site: Site, theirs: Trace, ours: np.ndarray) -> np.ndarray:
    """Which entries of torch's scores or weights are compared; `ours` are jax's along the normal run.

    Scores are not compared where on each side the weight of the key underflows, whatever number masks it.
    """
    scores = theirs[scores_of(site)].output[0]
    keys = scores > MASKED
    if last(site.path) != ATTENTION[0]:
        return np.broadcast_to(keys.any(-1, keepdims=True), keys.shape)
    order = order_of(scores, ours, valid=keys)
    if order is None:
        return keys
    return keys & ~(without_weight(scores) & without_weight(to_torch_axes(ours, order, scores.shape)))


def without_weight(scores: np.ndarray) -> np.ndarray:
    """Where the weight underflows, in float32 at least."""
    return scores < scores.max(-1, keepdims=True) + np.log(TINY)


def scores_of(site: Site) -> Site:
    """The scores beside a call that is scores or weights."""
    return Site(join(parent(site.path), ATTENTION[0]), site.call)
