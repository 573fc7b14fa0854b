"""Activation patching: torch's arrays replace jax's wherever a paired call begins or ends.

All replacements happen in one program, compiled once for every order of torch's axes and every set of open boundaries.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.io.on_disk import kept_tree
from jaxformer.parity.numerics.axis_order import Order, to_jax_axes, to_torch_axes
from jaxformer.parity.numerics.float_masks import is_left, is_other, kind_of
from jaxformer.parity.pairing.arrays import AxisOrders, fit
from jaxformer.parity.runs.load_weights import joined, parted
from jaxformer.parity.trace.call_records import Record, apart, arrays_in, replaced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.jax_hooks import watch_jax
from jaxformer.parity.trace.programs import compiled_once
from jaxformer.parity.trace.transformations import written_out
from jaxformer.runtime.xla_options import Options

Code = tuple[Site, Site | None]
"""Code that makes or uses an array: the code of a call, and the child call that the array goes to or comes from, if any."""


class Patched(NamedTuple):
    """One of jax's arrays, and the torch array that replaces it."""

    maker: Code
    sender: Code
    """Code that uses the array, and that sends a gradient back to it."""
    place: ArrayKey
    torch: np.ndarray
    jax: Any


@dataclass
class ActivationPatching:
    """Observer of a run of the JAX model that puts torch's arrays in place of jax's."""

    records: Mapping[Site, Record]
    """torch's records, by jax's calls."""
    values: Mapping[ArrayKey, Any]
    """torch's arrays; 1-D ones are flattened and have jax's axes already, others have torch's axes."""
    cotangents: Mapping[ArrayKey, Any]
    """torch's gradients of these arrays, in the same form; empty if no gradients are requested."""
    opened: Mapping[ArrayKey, Any]
    """True where the boundary is open, so that jax's own array stays."""
    valid: Mapping[ArrayKey, Any]
    """Entries of attention scores and weights that are compared, in the same form."""
    orders: AxisOrders
    running: list[Site] = field(default_factory=list)
    """Paired calls that have begun and not ended."""
    without_input: set[Site] = field(default_factory=set)
    """Calls without an input array: it is unknown which code uses their outputs."""
    found: list[Patched] = field(default_factory=list)
    senders: dict[ArrayKey, Code] = field(default_factory=dict)
    """Code that sends a gradient back to each place; it names the child whose output is at the place, if any."""
    total: jax.Array = field(default_factory=lambda: jnp.zeros(()))
    """Sum whose gradient is torch's gradient at every place where jax's code ends."""

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Replace the inputs of a call by torch's.

        Inputs of the model itself stay, since the user's call made them. Other inputs are made by the code of the calling
        module, or of the user's function if it calls a submodule directly.
        """
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
        """Replace the output of a call, made by the call's own code, for the code around it."""
        if site not in self.records:
            return output
        if self.running:
            self.running.pop()
        around = self.running[-1] if self.running else CALL
        return self._patch(output, site, "output", (site, None), (around, site))

    def _patch(self, value: Any, site: Site, part: str, maker: Code, sender: Code) -> Any:
        """Replace the arrays in a value by torch's arrays that fit, in order. An array that jax passes for several of torch's
        is each of these."""
        recorded = getattr(self.records[site], part)
        value = of_several(value, recorded) if part == "inputs" else value
        given = arrays_in(value)
        numbers = fit(recorded, given, any_kind=site == CALL)
        put = [
            array if i is None else self._patched(array, recorded[i], ArrayKey(site, part, i), maker, sender)
            for array, i in zip(given, numbers, strict=True)
        ]
        return replaced(value, given, put)

    def _patched(self, array: jax.Array, theirs: np.ndarray, place: ArrayKey, maker: Code, sender: Code) -> jax.Array:
        """torch's array in place of jax's; a mask of jax's that means the same as torch's stays, and so do integers beside a
        call's first array that are another thing."""
        order = self.orders.take(place, theirs.shape, array.shape)
        instead = in_shape(self.values[place], order, array.shape).astype(array.dtype)
        shown = array
        trained = place in self.cotangents  # zeros with a gradient are not a mask that hides nothing
        same = None
        if place.part == "inputs" and (kind := kind_of(theirs)) and not (kind == "zeros" and trained):
            same = is_left(kind, instead, array)
        elif place.part == "inputs" and place.number and theirs.dtype.kind in "iu":
            same = is_other(instead, array)
        if same is not None:
            instead, shown = jnp.where(same, array, instead), jnp.where(same, instead, array)
        self.found.append(Patched(maker, sender, place, theirs, shown))
        instead = self._with_gradient(array, instead, place, order, sender)
        return jnp.where(self.opened[place], array, instead) if place in self.opened else instead

    def _with_gradient(self, array: jax.Array, instead: jax.Array, place: ArrayKey, order: Order, sender: Code) -> jax.Array:
        """torch's array with torch's gradient sent back into jax's code; if torch has no gradient, jax's passes through."""
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


def of_several(arguments: Any, recorded: Sequence[np.ndarray]) -> Any:
    """Return arguments in which an array that stands several times is copied, if the copies fit more of torch's arrays."""
    once = arrays_in(arguments)
    if len(recorded) <= len(once):
        return arguments
    several = apart(arguments)
    each = arrays_in(several)
    fitting = [len(those) - fit(recorded, those).count(None) for those in (once, each)]
    return several if len(each) == len(recorded) and fitting[1] - fitting[0] == len(each) - len(once) else arguments


def in_shape(theirs: Any, order: Order, shape: tuple[int, ...]) -> Any:
    """torch's array with JAX's axes; a flattened one has their order already."""
    return theirs.reshape(shape) if theirs.ndim == 1 else to_jax_axes(theirs, order, shape)


Arrays = Mapping[ArrayKey, np.ndarray]


class Given(NamedTuple):
    """torch's arrays, by their places in jax's calls."""

    records: Mapping[Site, Record]
    values: Arrays
    """Float arrays."""
    cotangents: Arrays
    """Gradients of the float arrays; empty if no gradients are requested."""
    others: Arrays
    """Arrays that are not floats."""
    valid: Arrays
    """Entries of attention scores and weights that are compared, by place."""
    attention: Mapping[Site, np.ndarray]
    """Entries of attention scores and weights that are compared, by call."""
    gradients: bool


class PatchedRun(NamedTuple):
    """Result of a patched run."""

    found: list[Patched]
    """Patched arrays; jax's are numpy arrays."""
    orders: AxisOrders
    """Orders of torch's axes in jax's arrays."""
    senders: Mapping[ArrayKey, Code]
    sent: Arrays
    """Gradients sent back to the places where torch's arrays replaced jax's, with torch's axes."""
    weights: Callable[[], PyTree] | None
    """Function that returns the gradients of the model's arrays; None if no gradients were requested."""


def given_by(records: Mapping[Site, Record], valid: Mapping[Site, np.ndarray], *, gradients: bool) -> Given:
    """Collect torch's arrays of these calls."""
    every = _arrays(records, "inputs", "output")
    values = {place: array for place, array in every.items() if _is_float(array)}
    others = {place: array for place, array in every.items() if place not in values}
    back = _arrays(records, "input_gradients", "output_gradients") if gradients else {}
    cotangents = {place: array for place, array in back.items() if _is_float(array)}
    compared = {place: valid[place.site] for place in values if place.site in valid}
    return Given(records, values, cotangents, others, compared, valid, gradients)


@dataclass
class PatchedProgram:
    """The JAX model on torch's arrays, as a compiled program; not compiled if it cannot be traced."""

    given: Given
    load: Callable[[], Any]
    """Function that returns the JAX model."""
    program: Callable[..., Any]
    """Function of torch's arrays, the weights and the open boundaries."""
    patching: list[ActivationPatching]
    """Observer of the last run: of the trace if the program is compiled, else of the run on numbers."""
    orders: list[AxisOrders]
    """Orders of axes that the next run begins with."""
    is_traced: bool

    @classmethod
    def compiled(
        cls,
        load: Callable[[], Any],
        call: Callable[..., Any],
        inputs: tuple[Any, ...],
        given: Given,
        boundaries: Iterable[ArrayKey],
        options: Options,
    ) -> "PatchedProgram":
        """Compile the program for all orders of axes, and for every subset of `boundaries` that may be open."""
        weights, rest = parted(load())
        last: list[ActivationPatching] = []
        orders = [AxisOrders({}, given.attention)]

        def run(values: Any, weights: Any, cotangents: Any, others: Any, valid: Any, opened: Any) -> tuple[Any, Any]:
            last[:] = [
                patching := ActivationPatching(given.records, {**values, **others}, cotangents, opened, valid, orders[0])
            ]
            model = joined(weights, rest)
            with watch_jax(model, patching), written_out():
                patching.leave(CALL, call(model, *inputs))
            return patching.total, [each.jax for each in patching.found]

        program = jax.value_and_grad(run, (0, 1), has_aux=True) if given.gradients else run
        values, *more = ({place: _flat(array) for place, array in each.items()} for each in _parts(given))
        compiled = compiled_once(program, values, weights, *more, dict.fromkeys(boundaries, False), options=options)
        return cls(given, load, compiled.run, last, orders, compiled.is_compiled)

    def run(self, known: Mapping[ArrayKey, Order], opened: Mapping[ArrayKey, bool]) -> PatchedRun:
        """Run with these orders of torch's axes; jax's arrays stay at the boundaries where `opened` is True."""
        self.orders[:] = [orders := AxisOrders(known, self.given.attention)]
        if self.is_traced:
            traced = self.patching[0]
            for each in traced.found:
                orders.take(each.place, each.torch.shape, traced.orders.shapes[each.place])
        values, *more = (
            {place: self._given(place, array, orders) for place, array in each.items()} for each in _parts(self.given)
        )
        result = self.program(values, parted(self.load())[0], *more, dict(opened))
        (_, arrays), (back, own) = result if self.given.gradients else (result, ({}, None))
        (patching,) = self.patching
        found = [each._replace(jax=np.asarray(array)) for each, array in zip(patching.found, arrays, strict=True)]
        sent = {place: self._torch_axes(place, np.asarray(back[place]), orders) for place in patching.senders if place in back}
        return PatchedRun(found, orders, patching.senders, sent, kept_tree(own) if self.given.gradients else None)

    def _given(self, place: ArrayKey, array: np.ndarray, orders: AxisOrders) -> Any:
        """torch's array in the form that the program takes."""
        if self.is_traced:
            array = _flat(to_jax_axes(array, orders.taken[place], orders.shapes[place]) if place in orders.taken else array)
        return jax.device_put(array)

    def _torch_axes(self, place: ArrayKey, array: np.ndarray, orders: AxisOrders) -> np.ndarray:
        """Gradient from the program, with torch's axes."""
        return to_torch_axes(array, orders.taken[place], self.given.values[place].shape) if self.is_traced else array


def _parts(given: Given) -> tuple[Arrays, ...]:
    return given.values, given.cotangents, given.others, given.valid


def _arrays(records: Mapping[Site, Record], inputs: str, output: str) -> dict[ArrayKey, np.ndarray]:
    """Arrays of all records, by place."""
    return {
        ArrayKey(site, part, i): array
        for site, record in records.items()
        for part, name in (("inputs", inputs), ("output", output))
        for i, array in enumerate(getattr(record, name))
        if array is not None
    }


def _is_float(array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating)


def _flat(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1)
