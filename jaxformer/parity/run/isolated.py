"""Each JAX module alone, on torch's values.

In a normal run an error spreads: every module after a bug differs. So each module is given the inputs that torch's module had,
and everything around it the outputs that torch's module gave; on the way back, the gradients that torch's had. Then a module
differs only if its own code does: in what it hands to its children, in what it returns, and in what it sends back.
All of it is one pass, by activation patching.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.parity.capture.call_records import Record, Trace
from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.capture.jax_hooks import run_once, watch_jax
from jaxformer.parity.capture.written_out import written_out
from jaxformer.parity.numerics.axis_order import Order, nearer_order, to_torch_axes
from jaxformer.parity.run.activation_patching import ActivationPatching, Code
from jaxformer.parity.run.load_weights import joined, parted

MOST_PASSES = 6
"""So often at most a pass is done again with other orders of axes."""
Pass = Callable[[Mapping[ArrayKey, bool]], "Isolated"]
"""A compiled pass: where its argument is True, jax's arrays stay."""


@dataclass(frozen=True)
class Mismatch:
    """One of jax's arrays beside torch's, and whose code made the difference, if there is one."""

    owner: Site
    child: Site | None
    """jax's call, if the array is on its way into one of the owner's children; None for the owner's output."""
    what: str
    """Which array it is: its output, the input of a child, the gradient of a weight."""
    jax: np.ndarray
    """In torch's order of axes."""
    torch: np.ndarray
    place: ArrayKey | None = None
    """Where it is, the part being one of a record; None for the gradient of a weight."""
    reader: Site = CALL
    """Whose code goes on with it."""


@dataclass(frozen=True)
class Isolated:
    """What a pass found."""

    mismatches: list[Mismatch]
    """Of values."""
    gradient_mismatches: list[Mismatch]
    weights: Any
    """The gradients of the model's arrays, each from its own modules' code alone; None if none were asked for."""
    orders: Mapping[ArrayKey, Order] = field(default_factory=dict)
    """Of torch's axes in jax's arrays."""
    wrong: Mapping[ArrayKey, Order] = field(default_factory=dict)
    """The first of these that was taken wrongly: another order, given here, is by far nearer."""


@dataclass(frozen=True)
class Isolation:
    """The JAX model, and the torch calls whose arrays its modules are given."""

    model: Any
    call: Callable[..., Any]
    inputs: tuple[Any, ...]
    calls: Trace
    """torch's."""
    pairs: Mapping[Site, Site]
    """jax's calls -> torch's."""
    valid: Mapping[Site, np.ndarray]
    """Which entries of attention's scores and weights are compared."""
    gradients: bool

    def run(self, orders: Mapping[ArrayKey, Order], *, corrected: bool = True) -> Isolated:
        """A pass with these orders of torch's axes; if they are to be `corrected`, it is done again where one was wrong."""
        isolated = self.compiled(orders)({})
        for _ in range(MOST_PASSES if corrected else 0):
            if isolated.wrong:
                orders = {**orders, **isolated.wrong}
                isolated = self.compiled(orders)({})
        return isolated

    def compiled(self, orders: Mapping[ArrayKey, Order]) -> Pass:
        """One pass, compiled once for all arguments that name the same places."""
        records = {site: self.calls[other] for site, other in self.pairs.items()}
        values, gradients = _floats(records, "inputs", "output"), _floats(records, "input_gradients", "output_gradients")
        gradients = gradients if self.gradients else {}
        weights, rest = parted(self.model)
        last: list[ActivationPatching] = []

        def run(values: Any, weights: Any, gradients: Any, opened: Any) -> tuple[Any, Any]:
            last[:] = [patching := ActivationPatching(records, values, gradients, opened, self.valid, orders)]
            model = joined(weights, rest)
            with watch_jax(model, patching), written_out():
                patching.leave(CALL, self.call(model, *self.inputs))
            return patching.total, [each.jax for each in patching.found]

        program = jax.value_and_grad(run, (0, 1), has_aux=True) if self.gradients else run

        def one_pass(opened: Mapping[ArrayKey, bool]) -> Isolated:
            given, _ = run_once(program, values, weights, gradients, opened)
            (_, found), (back, own) = given if self.gradients else (given, ({}, None))
            (patching,) = last
            mismatches, wrong = _mismatches(patching, list(map(np.asarray, found)))
            sent = {place: np.asarray(array) for place, array in back.items() if not opened.get(place)}
            taken = {each.place: each.order for each in patching.found}
            return Isolated(mismatches, _gradient_mismatches(patching.senders, sent, gradients), own, taken, wrong)

        return one_pass


def _mismatches(patching: ActivationPatching, found: list[np.ndarray]) -> tuple[list[Mismatch], dict[ArrayKey, Order]]:
    """Of values; and the first order that was taken wrongly."""
    mismatches, wrong = [], {}
    for pair, ours in zip(patching.found, found, strict=True):
        valid, theirs = patching.valid.get(pair.place.site), pair.torch
        if not wrong and not pair.fixed and (order := nearer_order(theirs, ours, pair.order, valid)) != pair.order:
            wrong = {pair.place: order}
        ours = to_torch_axes(ours, pair.order, theirs.shape)
        if valid is not None:
            ours, theirs = (np.where(valid, side, 0) for side in (ours, theirs))
        (owner, child), (reader, _) = pair.maker, pair.sender
        what = "output" if child is None else f"input of {child}"
        mismatches.append(Mismatch(owner, child, what, ours, theirs, pair.place, reader))
    return mismatches, wrong


def _gradient_mismatches(
    senders: Mapping[ArrayKey, Code], sent: Mapping[ArrayKey, np.ndarray], gradients: Mapping[ArrayKey, Any]
) -> list[Mismatch]:
    """Of what was sent back to where torch's arrays were put in place of jax's."""
    mismatches = []
    for place, (owner, child) in senders.items():
        if place in sent:
            what = "gradient of its input" if child is None else f"gradient it sends to {child}"
            back = place._replace(part=f"{place.part.removesuffix('s')}_gradients")
            mismatches.append(Mismatch(owner, child, what, sent[place], np.asarray(gradients[place]), back))
    return mismatches


def _floats(records: Mapping[Site, Record], inputs: str, output: str) -> dict[ArrayKey, Any]:
    """The float arrays of all records, by where they are."""
    return {
        ArrayKey(site, part, i): jnp.asarray(array)
        for site, record in records.items()
        for part, name in (("inputs", inputs), ("output", output))
        for i, array in enumerate(getattr(record, name))
        if array is not None and np.issubdtype(array.dtype, np.floating)
    }
