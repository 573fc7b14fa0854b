"""Activation patching as one program: compiled once, whatever the order of torch's axes is.

Where axes have one size, the order is found by trying. So it is no part of the program: torch's arrays come in flat, with the
axes as jax's code has them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxformer.parity.capture.call_records import Record
from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.capture.jax_hooks import compiled_once, watch_jax
from jaxformer.parity.capture.written_out import written_out
from jaxformer.parity.numerics.axis_order import Order, to_jax_axes, to_torch_axes
from jaxformer.parity.run.activation_patching import ActivationPatching, Code, Patched
from jaxformer.parity.run.fit_arrays import AxisOrders
from jaxformer.parity.run.load_weights import joined, parted
from jaxformer.runtime.xla_options import Options

Arrays = Mapping[ArrayKey, np.ndarray]


class Given(NamedTuple):
    """torch's arrays, by where they are in jax's calls."""

    records: Mapping[Site, Record]
    values: Arrays
    """Floats."""
    cotangents: Arrays
    """Their gradients; none if none are asked for."""
    others: Arrays
    """Values that are not floats."""
    valid: Arrays
    """Which entries of attention's scores and weights are compared."""
    attention: Mapping[Site, np.ndarray]
    """The same, by call."""
    gradients: bool


class PatchedRun(NamedTuple):
    """What a run gave."""

    found: list[Patched]
    """With jax's arrays as numbers."""
    orders: AxisOrders
    """Of torch's axes in jax's arrays."""
    senders: Mapping[ArrayKey, Code]
    sent: Arrays
    """What was sent back to where torch's arrays were put in place of jax's, with torch's axes."""
    weights: Any
    """The gradients of the model's arrays; None if none were asked for."""


def given_by(records: Mapping[Site, Record], valid: Mapping[Site, np.ndarray], *, gradients: bool) -> Given:
    """torch's arrays of these calls."""
    every = _arrays(records, "inputs", "output")
    values = {place: array for place, array in every.items() if _is_float(array)}
    others = {place: array for place, array in every.items() if place not in values}
    back = _arrays(records, "input_gradients", "output_gradients") if gradients else {}
    cotangents = {place: array for place, array in back.items() if _is_float(array)}
    compared = {place: valid[place.site] for place in values if place.site in valid}
    return Given(records, values, cotangents, others, compared, valid, gradients)


@dataclass
class PatchedProgram:
    """The JAX model on torch's arrays, compiled; or not, where it cannot be traced."""

    given: Given
    weights: Any
    """The model's."""
    program: Callable[..., Any]
    """Of torch's arrays, and of the places where jax's stay."""
    patching: list[ActivationPatching]
    """The last that ran: while it was traced, or on numbers."""
    orders: list[AxisOrders]
    """Those to begin with, for the next that runs."""
    is_traced: bool

    @classmethod
    def compiled(
        cls,
        model: Any,
        call: Callable[..., Any],
        inputs: tuple[Any, ...],
        given: Given,
        borders: Iterable[ArrayKey],
        options: Options,
    ) -> "PatchedProgram":
        """For all orders of axes, and for all `borders` that are open or not."""
        weights, rest = parted(model)
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
        compiled, untraced = compiled_once(program, values, weights, *more, dict.fromkeys(borders, False), options=options)
        return cls(given, weights, compiled, last, orders, not untraced)

    def run(self, known: Mapping[ArrayKey, Order], opened: Mapping[ArrayKey, bool]) -> PatchedRun:
        """With these orders of torch's axes, and jax's arrays at the places where `opened` is True."""
        self.orders[:] = [orders := AxisOrders(known, self.given.attention)]
        if self.is_traced:
            traced = self.patching[0]
            for each in traced.found:
                orders.take(each.place, each.torch.shape, traced.orders.shapes[each.place])
        values, *more = (
            {place: self._given(place, array, orders) for place, array in each.items()} for each in _parts(self.given)
        )
        result = self.program(values, self.weights, *more, dict(opened))
        (_, arrays), (back, own) = result if self.given.gradients else (result, ({}, None))
        (patching,) = self.patching
        found = [each._replace(jax=np.asarray(array)) for each, array in zip(patching.found, arrays, strict=True)]
        sent = {place: self._torch_axes(place, np.asarray(back[place]), orders) for place in patching.senders if place in back}
        return PatchedRun(found, orders, patching.senders, sent, own)

    def _given(self, place: ArrayKey, array: np.ndarray, orders: AxisOrders) -> Any:
        """torch's array as the program takes it."""
        if not self.is_traced:
            return jax.device_put(array)
        return _flat(to_jax_axes(array, orders.taken[place], orders.shapes[place]) if place in orders.taken else array)

    def _torch_axes(self, place: ArrayKey, array: np.ndarray, orders: AxisOrders) -> np.ndarray:
        """What the program gives for it."""
        return to_torch_axes(array, orders.taken[place], self.given.values[place].shape) if self.is_traced else array


def _parts(given: Given) -> tuple[Arrays, ...]:
    return given.values, given.cotangents, given.others, given.valid


def _arrays(records: Mapping[Site, Record], inputs: str, output: str) -> dict[ArrayKey, np.ndarray]:
    """The arrays of all records, by where they are."""
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
