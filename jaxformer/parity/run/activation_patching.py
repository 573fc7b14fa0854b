"""Activation patching: torch's arrays are put in place of jax's wherever a paired call begins or ends, and both are noted.

What a module makes of torch's arrays is then its own doing. On the way back, torch's gradients are put in place of jax's too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.parity.capture.call_records import Record, arrays_in, replaced
from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.numerics.axis_order import Order, to_jax_axes
from jaxformer.parity.numerics.float_masks import is_left, kind_of
from jaxformer.parity.run.fit_arrays import AxisOrders, fit

Code = tuple[Site, Site | None]
"""Whose code makes or uses an array: a module's, and the child that it calls, if one is meant."""


class Patched(NamedTuple):
    """One of jax's arrays, and torch's in its place."""

    maker: Code
    sender: Code
    """Whose code goes on with it, and sends a gradient back."""
    place: ArrayKey
    torch: np.ndarray
    jax: Any


@dataclass
class ActivationPatching:
    """An observer of a run of the JAX model."""

    records: Mapping[Site, Record]
    """torch's, by jax's calls."""
    values: Mapping[ArrayKey, Any]
    """torch's arrays: flat ones have jax's axes already, others torch's."""
    cotangents: Mapping[ArrayKey, Any]
    """torch's gradients of them, likewise; empty if none are asked for."""
    opened: Mapping[ArrayKey, Any]
    """Where True, jax's own array stays."""
    valid: Mapping[ArrayKey, Any]
    """Which entries of attention's scores and weights are compared, likewise."""
    orders: AxisOrders
    running: list[Site] = field(default_factory=list)
    """The paired calls that have begun and not ended."""
    without_input: set[Site] = field(default_factory=set)
    """Calls without an array: it cannot be told whose code uses what they give."""
    found: list[Patched] = field(default_factory=list)
    senders: dict[ArrayKey, Code] = field(default_factory=dict)
    """Whose code sends a gradient back to a place, and to which child's output."""
    total: jax.Array = field(default_factory=lambda: jnp.zeros(()))
    """Its gradient is torch's, wherever jax's ends."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The user calls the model itself, so those inputs stay; what a module hands to another is the module's, and what the
        user's function hands to one inside of the model is that function's."""
        if site not in self.records:
            return arguments
        if not arrays_in(arguments):
            self.without_input.add(site)
        elif self.running or site.path:
            around = self.running[-1] if self.running else CALL
            arguments = self._patch(arguments, site, "inputs", (around, site), (site, None))
        self.running.append(site)
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        """The output is the module's; the call around it goes on with it."""
        if site not in self.records:
            return output
        if self.running:
            self.running.pop()
        around = self.running[-1] if self.running else CALL
        return self._patch(output, site, "output", (site, None), (around, site))

    def _patch(self, value: Any, site: Site, part: str, maker: Code, sender: Code) -> Any:
        """The value with torch's arrays in place of those that fit, in their order."""
        recorded, given = getattr(self.records[site], part), arrays_in(value)
        numbers = fit(recorded, given, any_kind=site == CALL)
        put = [
            array if i is None else self._patched(array, recorded[i], ArrayKey(site, part, i), maker, sender)
            for array, i in zip(given, numbers, strict=True)
        ]
        return replaced(value, given, put)

    def _patched(self, array: jax.Array, theirs: np.ndarray, place: ArrayKey, maker: Code, sender: Code) -> jax.Array:
        """torch's array; a mask of jax's that means the same stays."""
        order = self.orders.take(place, theirs.shape, array.shape)
        instead = in_shape(self.values[place], order, array.shape).astype(array.dtype)
        shown = array
        trained = place in self.cotangents  # so zeros are no mask that hides nothing
        if place.part == "inputs" and (kind := kind_of(theirs)) and not (kind == "zeros" and trained):
            same = is_left(kind, instead, array)
            instead, shown = jnp.where(same, array, instead), jnp.where(same, instead, array)
        self.found.append(Patched(maker, sender, place, theirs, shown))
        instead = self._with_gradient(array, instead, place, order, sender)
        return jnp.where(self.opened[place], array, instead) if place in self.opened else instead

    def _with_gradient(self, array: jax.Array, instead: jax.Array, place: ArrayKey, order: Order, sender: Code) -> jax.Array:
        """torch's array, which sends torch's gradient back into jax's code; where torch has none, jax's passes through."""
        if place in self.cotangents:
            cotangent = in_shape(self.cotangents[place], order, array.shape)
            product = (array * cotangent).sum()
            self.total += jnp.where(self.opened[place], 0.0, product) if place in self.opened else product
            if place.site != CALL and place.site not in self.without_input:
                self.senders[place] = sender
        elif jnp.issubdtype(array.dtype, jnp.inexact):
            if (valid := self.valid.get(place)) is not None:
                compared = in_shape(valid, order, array.shape)
                instead = jnp.where(compared, instead, jax.lax.stop_gradient(array))
            instead += jnp.where(jnp.isfinite(array), array - jax.lax.stop_gradient(array), jnp.zeros_like(array))
        return instead


def in_shape(theirs: Any, order: Order, shape: tuple[int, ...]) -> Any:
    """torch's array with JAX's axes; a flat one has their order already."""
    return theirs.reshape(shape) if theirs.ndim == 1 else to_jax_axes(theirs, order, shape)
