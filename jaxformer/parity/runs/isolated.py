"""Each JAX module alone, on torch's values.

In a normal run an error spreads: every module after a bug differs. Here each module gets the inputs that torch's module had,
the code around it gets the outputs that torch's module gave, and the backward pass gets torch's gradients. A module then
differs only if its own code does: in the inputs of its children, in its output, and in the gradients that it sends back. All of
it is one pass, by activation patching.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxformer.parity.numerics.axis_order import Order, nearer_order, to_torch_axes
from jaxformer.parity.runs.activation_patching import Code, PatchedProgram, PatchedRun, given_by
from jaxformer.parity.trace.call_records import Trace
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.programs import RUN_ONCE
from jaxformer.runtime.xla_options import Options

MOST_PASSES = 6
"""Largest number of passes that are repeated with corrected orders of axes."""


@dataclass(frozen=True)
class Mismatch:
    """One of jax's arrays beside torch's, and the call whose code is responsible for a difference."""

    owner: Site
    child: Site | None
    """jax's call if the array is an input of one of the owner's children; None for the owner's output."""
    what: str
    """Description of the array: output, input of a child, or gradient of a weight."""
    jax: np.ndarray
    """jax's array in torch's order of axes."""
    torch: np.ndarray
    place: ArrayKey | None = None
    """Place of the array, its part being the name of a field of Record; None for the gradient of a weight."""
    reader: Site = CALL
    """Call whose code uses the array."""


@dataclass(frozen=True)
class Isolated:
    """Result of a pass."""

    mismatches: list[Mismatch]
    """Mismatches of values."""
    gradient_mismatches: list[Mismatch]
    weights: Callable[[], PyTree] | None
    """Function that returns the gradients of the model's arrays, each from the code of its own modules only; None if none were
    requested."""
    orders: Mapping[ArrayKey, Order] = field(default_factory=dict)
    """Orders of torch's axes in jax's arrays."""


@dataclass(frozen=True)
class Isolation:
    """The JAX model, and the torch calls whose arrays its modules are given."""

    load: Callable[[], Any]
    """Function that returns the model, in float64: it is held only while it runs."""
    call: Callable[..., Any]
    inputs: tuple[Any, ...]
    calls: Trace
    """torch's calls."""
    pairs: Mapping[Site, Site]
    """jax's calls -> torch's calls."""
    valid: Mapping[Site, np.ndarray]
    """Entries of attention scores and weights that are compared."""
    gradients: bool
    outputs: Sequence[str] = ("",)
    """Names of the output's arrays."""
    options: Options = field(default_factory=lambda: RUN_ONCE)
    """XLA's compiler options."""

    def run(self, orders: Mapping[ArrayKey, Order], *, corrected: bool = True) -> Isolated:
        """Run a pass with these orders of torch's axes; with `corrected`, repeat it as long as an order was wrong."""
        found = self.program.run(orders, {})
        for _ in range(MOST_PASSES if corrected else 0):
            if wrong := _first_wrong(found, self.valid):
                orders = {**orders, **wrong}
                found = self.program.run(orders, {})
        return self._isolated(self.program, found, {})

    @property
    def model(self) -> Any:
        """Model, made anew."""
        return self.load()

    @cached_property
    def program(self) -> PatchedProgram:
        """Program compiled once for all orders of axes."""
        return self.compiled((), gradients=True)

    def compiled(self, boundaries: Iterable[ArrayKey], *, gradients: bool) -> PatchedProgram:
        """Compile a program in which jax's arrays may stay at these boundaries, with gradients if requested."""
        records = {site: self.calls[other] for site, other in self.pairs.items()}
        given = given_by(records, self.valid, gradients=gradients and self.gradients)
        return PatchedProgram.compiled(self.load, self.call, self.inputs, given, boundaries, self.options)

    def judged(self, program: PatchedProgram, orders: Mapping[ArrayKey, Order], opened: Mapping[ArrayKey, bool]) -> Isolated:
        """Run one pass of a compiled program."""
        return self._isolated(program, program.run(orders, opened), opened)

    def sending(self, program: PatchedProgram, places: Container[ArrayKey]) -> PatchedProgram:
        """Return a program in which gradients come back from these places only, and are 0 elsewhere."""
        every = program.given.cotangents
        cotangents = {place: array if place in places else np.zeros_like(array) for place, array in every.items()}
        return replace(program, given=program.given._replace(cotangents=cotangents))

    def given(self, orders: Mapping[ArrayKey, Order], values: Mapping[ArrayKey, np.ndarray]) -> Isolated:
        """Run a pass with these arrays in place of torch's."""
        given = self.program.given._replace(values={**self.program.given.values, **values})
        program = replace(self.program, given=given)
        return self._isolated(program, program.run(orders, {}), {})

    def _isolated(self, program: PatchedProgram, found: PatchedRun, opened: Mapping[ArrayKey, bool]) -> Isolated:
        sent = {place: array for place, array in found.sent.items() if not opened.get(place)}
        gradients = _gradient_mismatches(found.senders, sent, program.given.cotangents)
        return Isolated(_mismatches(found, self.valid, self.outputs), gradients, found.weights, found.orders.taken)


def _mismatches(run: PatchedRun, valid: Mapping[Site, np.ndarray], outputs: Sequence[str]) -> list[Mismatch]:
    """Pair each of jax's values with torch's array."""
    mismatches = []
    for pair in run.found:
        compared, theirs = valid.get(pair.place.site), pair.torch
        ours = to_torch_axes(pair.jax, run.orders.taken[pair.place], theirs.shape)
        if compared is not None:
            ours, theirs = (np.where(compared, side, 0) for side in (ours, theirs))
        (owner, child), (reader, _) = pair.maker, pair.sender
        name = outputs[pair.place.number] if pair.place.site == CALL else ""
        what = f"output {name}".strip() if child is None else f"input of {child}"
        mismatches.append(Mismatch(owner, child, what, ours, theirs, pair.place, reader))
    return mismatches


def _first_wrong(run: PatchedRun, valid: Mapping[Site, np.ndarray]) -> dict[ArrayKey, Order]:
    """Find the first order of torch's axes that was wrong: another order, returned here, is far nearer."""
    for pair in run.found:
        if pair.place not in run.orders.fixed:
            taken = run.orders.taken[pair.place]
            if (order := nearer_order(pair.torch, pair.jax, taken, valid.get(pair.place.site))) != taken:
                return {pair.place: order}
    return {}


def _gradient_mismatches(
    senders: Mapping[ArrayKey, Code], sent: Mapping[ArrayKey, np.ndarray], gradients: Mapping[ArrayKey, Any]
) -> list[Mismatch]:
    """Pair the gradients sent back to the places where torch's arrays replaced jax's with torch's gradients."""
    mismatches = []
    for place, (owner, child) in senders.items():
        if place in sent:
            what = "gradient of its input" if child is None else f"gradient it sends to {child}"
            back = place._replace(part=f"{place.part.removesuffix('s')}_gradients")
            mismatches.append(Mismatch(owner, child, what, sent[place], gradients[place], back))
    return mismatches
