"""Values inside `jax.vmap` as they are outside of it: with the mapped axis in front.

So a module or a tap that runs on one example of a batch is seen with the batch, as torch has it.
"""

from collections.abc import Callable
from typing import Any

from jax.custom_batching import custom_vmap

from jaxformer.parity.trace.call_records import arrays_in, replaced


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
