"""Each JAX module alone, on torch's values.

In a normal run an error spreads: every module after a bug differs. So each module is given the inputs that torch's module had,
and everything around it the outputs that torch's module gave; on the way back, the gradients that torch's had. Then a module
differs only if its own code does: in what it hands to its children, in what it returns, and in what it sends back.
All of it is one pass, by activation patching.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from jaxformer.parity.numerics.axis_order import Order, nearer_order, to_torch_axes
from jaxformer.parity.runs.activation_patching import Code, PatchedProgram, PatchedRun, given_by
from jaxformer.parity.trace.call_records import Trace
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.jax_hooks import RUN_ONCE
from jaxformer.runtime.xla_options import Options

MOST_PASSES = 6
"""So often at most a pass is done again with other orders of axes."""


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
    outputs: Sequence[str] = ("",)
    """What the arrays of the output are called."""
    options: Options = field(default_factory=lambda: RUN_ONCE)
    """Of XLA."""

    def run(self, orders: Mapping[ArrayKey, Order], *, corrected: bool = True) -> Isolated:
        """A pass with these orders of torch's axes; if they are to be `corrected`, it is done again where one was wrong."""
        found = self.program.run(orders, {})
        for _ in range(MOST_PASSES if corrected else 0):
            if wrong := _first_wrong(found, self.valid):
                orders = {**orders, **wrong}
                found = self.program.run(orders, {})
        return self._isolated(self.program, found, {})

    @cached_property
    def program(self) -> PatchedProgram:
        """Compiled once for all orders of axes."""
        return self.compiled((), gradients=True)

    def compiled(self, boundaries: Iterable[ArrayKey], *, gradients: bool) -> PatchedProgram:
        """One that leaves jax's arrays at these places, where it is told to; if wanted, with gradients."""
        records = {site: self.calls[other] for site, other in self.pairs.items()}
        given = given_by(records, self.valid, gradients=gradients and self.gradients)
        return PatchedProgram.compiled(self.model, self.call, self.inputs, given, boundaries, self.options)

    def judged(self, program: PatchedProgram, orders: Mapping[ArrayKey, Order], opened: Mapping[ArrayKey, bool]) -> Isolated:
        """One pass."""
        return self._isolated(program, program.run(orders, opened), opened)

    def sending(self, program: PatchedProgram, places: Container[ArrayKey]) -> PatchedProgram:
        """One in which gradients come back from these places alone: they are 0 wherever none of theirs comes."""
        every = program.given.cotangents
        cotangents = {place: array if place in places else np.zeros_like(array) for place, array in every.items()}
        return replace(program, given=program.given._replace(cotangents=cotangents))

    def given(self, orders: Mapping[ArrayKey, Order], values: Mapping[ArrayKey, np.ndarray]) -> Isolated:
        """A pass with these arrays in place of torch's."""
        given = self.program.given._replace(values={**self.program.given.values, **values})
        program = replace(self.program, given=given)
        return self._isolated(program, program.run(orders, {}), {})

    def _isolated(self, program: PatchedProgram, found: PatchedRun, opened: Mapping[ArrayKey, bool]) -> Isolated:
        sent = {place: array for place, array in found.sent.items() if not opened.get(place)}
        gradients = _gradient_mismatches(found.senders, sent, program.given.cotangents)
        return Isolated(_mismatches(found, self.valid, self.outputs), gradients, found.weights, found.orders.taken)


def _mismatches(run: PatchedRun, valid: Mapping[Site, np.ndarray], outputs: Sequence[str]) -> list[Mismatch]:
    """Of values."""
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
    """The first order of torch's axes that was taken wrongly: another one, given here, is by far nearer."""
    for pair in run.found:
        if pair.place not in run.orders.fixed:
            taken = run.orders.taken[pair.place]
            if (order := nearer_order(pair.torch, pair.jax, taken, valid.get(pair.place.site))) != taken:
                return {pair.place: order}
    return {}


def _gradient_mismatches(
    senders: Mapping[ArrayKey, Code], sent: Mapping[ArrayKey, np.ndarray], gradients: Mapping[ArrayKey, Any]
) -> list[Mismatch]:
    """Of what was sent back to where torch's arrays were put in place of jax's."""
    mismatches = []
    for place, (owner, child) in senders.items():
        if place in sent:
            what = "gradient of its input" if child is None else f"gradient it sends to {child}"
            back = place._replace(part=f"{place.part.removesuffix('s')}_gradients")
            mismatches.append(Mismatch(owner, child, what, sent[place], gradients[place], back))
    return mismatches
