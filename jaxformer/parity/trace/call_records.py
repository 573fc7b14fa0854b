"""Inputs, outputs and gradients of a module's calls as numpy arrays, attention scores and weights included.

Values inside `jax.vmap` are recorded as they are outside of it: with the mapped axis in front. So a module or a tap that runs
on one example of a batch is seen with the batch, as torch has it."""

import copy
from collections import UserDict
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

import jax
import numpy as np
from flax import linen, nnx
from jax.custom_batching import custom_vmap

from jaxformer.parity.numerics.axis_order import order_of, to_torch_axes
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.trace.call_sites import ATTENTION, Site, join, last, parent
from jaxformer.parity.trace.pytree_modules import is_module


@dataclass(frozen=True)
class Record:
    """Arrays of one call: the distinct arrays of its arguments, in order, and those of its output; other values are left out.

    A gradient is None if there is none, or if none was requested.
    """

    inputs: tuple[np.ndarray, ...]
    output: tuple[np.ndarray, ...]
    input_gradients: tuple[np.ndarray | None, ...] = ()
    """Gradient of each input, through this call alone."""
    output_gradients: tuple[np.ndarray | None, ...] = ()
    """Gradient of each array of the output, from everything that uses it."""


Trace = Mapping[Site, Record]
"""Records of all calls, in the order in which calls end."""


def is_array(value: Any) -> bool:
    """True for an array of either framework."""
    return isinstance(value, (np.ndarray, jax.Array)) or hasattr(value, "detach")


def arrays_in(value: Any) -> list[Any]:
    """Return the distinct arrays of an argument or a result, also those in lists, tuples, dicts and dataclasses."""
    found: dict[int, Any] = {}
    _visit(value, lambda array: found.setdefault(id(array), array))
    return list(found.values())


def named_arrays(value: Any, name: str = "") -> dict[str, Any]:
    """Return the arrays of a result by their path in it: 'logits', 'states.0'; '' if the result is an array."""
    if is_array(value):
        return {name: value}
    inner = (named_arrays(item, f"{name}.{key}" if name else str(key)) for key, item in _items(value).items())
    return {path: array for arrays in inner for path, array in arrays.items()}


def names_in(value: Any) -> list[str]:
    """Return the field names of a dict, a named tuple or a dataclass; empty for anything else."""
    named = isinstance(value, Mapping) or is_dataclass(value)
    return list(map(str, _items(value))) if named else list(getattr(value, "_fields", ()))


def replaced(value: Any, old: list[Any], new: list[Any]) -> Any:
    """Return an argument or a result with `new` arrays wherever the `old` ones stand."""
    by_identity = {id(array): other for array, other in zip(old, new, strict=True)}
    return _visit(value, lambda array: by_identity[id(array)])


def copied(value: Any) -> Any:
    """Return a value with its torch tensors cloned."""
    arrays = arrays_in(value)
    return replaced(value, arrays, [array.clone() for array in arrays])


def apart(value: Any) -> Any:
    """Return a value in which every array stands once: jax arrays that stand several times are copied."""
    seen = set[int]()

    def once(array: Any) -> Any:
        if id(array) not in seen:
            seen.add(id(array))
            return array
        return array.copy()

    return _visit(value, once)


def _visit(value: Any, f: Callable[[Any], Any]) -> Any:
    """Apply f to the arrays in a value; parts without an array that f changes (a shape, a range, a model) are returned as they
    are."""
    if is_array(value):
        return f(value)
    items = _items(value)
    changed = {name: other for name, item in items.items() if (other := _visit(item, f)) is not item}
    return _with(value, items, changed) if changed else value


def _items(value: Any) -> dict[Any, Any]:
    """Return the items of a list, tuple, dict or dataclass; empty for anything else, also for a UserDict, to which modules
    write what others read: a copy would part them."""
    if isinstance(value, (type, linen.Module, nnx.Module, UserDict)) or is_module(value):
        return {}
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)}
    if isinstance(value, Mapping):
        return dict(value)
    return dict(enumerate(value)) if isinstance(value, (list, tuple)) else {}


def _with(value: Any, items: dict[Any, Any], changed: dict[Any, Any]) -> Any:
    """Return a container of the same type with some items changed, without calling its constructor where that may refuse
    them."""
    if isinstance(value, tuple):
        every = [changed.get(i, item) for i, item in items.items()]
        return type(value)(every) if hasattr(value, "n_sequence_fields") else tuple.__new__(type(value), every)
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return cast(Any, type(value))(items | changed)
    other = copy.copy(value)
    for name, item in changed.items():
        if is_dataclass(value):
            object.__setattr__(other, name, item)  # works on frozen dataclasses too
        if not is_dataclass(value) or (isinstance(value, Mapping) and name in value):
            cast(Any, other)[name] = item
    return other


TINY = float(np.finfo(np.float32).tiny)
"""Smallest normal float32: a larger weight does not underflow, not even in float32."""


def is_attention(site: Site, record: Record) -> bool:
    """True if a torch call is not a module, but attention scores or weights."""
    return last(site.path) in ATTENTION and not record.inputs


def valid_entries(site: Site, theirs: Trace, ours: np.ndarray) -> np.ndarray:
    """Return the mask of torch's scores or weights to compare; `ours` are jax's scores or weights in the normal run.

    Scores are left out where the key's weight underflows on both sides, whatever number masks the key.
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
    """Return where the weight underflows, at least in float32."""
    return scores < scores.max(-1, keepdims=True) + np.log(TINY)


def scores_of(site: Site) -> Site:
    """Return the site of the scores that belong to a call of scores or weights."""
    return Site(join(parent(site.path), ATTENTION[0]), site.call)


def is_mapped(value: Any) -> bool:
    """True if a vmap maps over arrays in a value."""
    return any(_is_of_vmap(_unmapped(array)) for array in arrays_in(value))


def _is_of_vmap(array: Any) -> bool:
    return type(array).__name__ == "BatchTracer"


def _unmapped(array: Any) -> Any:
    """Return an array outside of the vmaps that do not map over it."""
    while _is_of_vmap(array) and array.batch_dim is None:
        array = array.val
    return array


def outside_of_vmaps(observe: Callable[[Any], Any], value: Any) -> Any:
    """Call observe(value) outside of all vmaps over the value; return its result inside them, with arrays of the same shapes.

    JAX runs a function's batching rule at once if a vmap maps over the arguments, and never inside another transformation.
    """
    inner = arrays_in(value)
    if not is_mapped(value):
        return observe(replaced(value, inner, list(map(_unmapped, inner))))

    @custom_vmap
    def same(*arrays: Any) -> tuple[Any, ...]:
        return arrays

    @same.def_vmap
    def outer(_: int, mapped: list[bool], *arrays: Any) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        seen = outside_of_vmaps(observe, replaced(value, inner, list(arrays)))
        return tuple(arrays_in(seen)), tuple(mapped)

    return replaced(value, inner, list(same(*inner)))
