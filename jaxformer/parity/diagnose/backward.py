"""Where in torch's code a gradient would have to stop, to come back as jax's does."""

import copy
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.capture.torch_hooks import watch_torch
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis
from jaxformer.parity.diagnose.mutation import Proposal
from jaxformer.parity.diagnose.operators.gradients import stops, usual
from jaxformer.parity.diagnose.trace import Listing, Rewrite
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import distance, host
from jaxformer.parity.record.partial_gradients import Cut
from jaxformer.parity.record.reference import Reference, tensors_of
from jaxformer.parity.record.torch_state import thawed
from jaxformer.parity.run.session import Session

NEAR, CLEAR = 1e-9, 100
"""relL2 of gradients that count as the same, and how many times less than the difference it is."""
REFUSED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass
class Backward:
    """What one torch call sends back, again and again."""

    reference: Reference
    owner: Site
    place: ArrayKey | tuple[str, ...]
    """Whose gradient it is: of its own input, of what a call inside of it gives, or of its weights, by their names."""
    borders: set[ArrayKey]
    """Where jax and torch have the same arrays; no gradient goes through them."""
    jax: np.ndarray
    """What jax sends back, of several weights one behind the other, as torch has their axes; and torch."""
    torch: np.ndarray

    @cached_property
    def model(self) -> Any:
        """In float64, of its own."""
        assert self.reference.source is not None
        return thawed(copy.deepcopy(self.reference.source.module).double()).eval()

    def gradient(self, altered: AbstractContextManager[Any] | None = None) -> np.ndarray:
        """torch's, with its code altered inside of the call."""
        model, reference = self.model, self.reference
        assert reference.source is not None
        given = {place for place in self.borders if place.part == "inputs" and place.site != self.owner}
        passing = {place for place in given if is_stopped(reference, place)}
        makers = {self.owner, *(place.site for place in passing)}
        made = {ArrayKey(site, "output", i) for site in makers for i in range(len(reference.calls[site].output))}
        observer = _Inside(Cut(reference.calls, given | made, self.borders - passing), self.owner, altered)
        with torch.enable_grad(), torch_float64(), watch_torch(model, observer), observer.stack:
            observer.enter(CALL, ())
            observer.leave(CALL, reference.source.call(model, *tensors_of(reference.inputs, torch.float64)))
        if one := isinstance(self.place, ArrayKey):
            leaves = [observer.cut.leaves[self.place]]
        else:
            leaves = [model.get_parameter(name) for name in self.place]
        found = torch.autograd.grad(observer.cut.total, leaves, allow_unused=True, materialize_grads=True)
        return host(found[0]) if one else flat(map(host, found))


def is_stopped(reference: Reference, place: ArrayKey) -> bool:
    """Whether torch sends nothing back from an input of real numbers: what jax sends there goes on."""
    record = reference.calls[place.site]
    if place.number >= len(record.inputs) or record.inputs[place.number].dtype.kind != "f":
        return False
    return place.number >= len(record.input_gradients) or record.input_gradients[place.number] is None


def flat(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """One behind the other."""
    return np.concatenate([np.ravel(each) for each in arrays])


class _Inside:
    """An observer: torch is altered while one call runs."""

    def __init__(self, cut: Cut, owner: Site, altered: AbstractContextManager[Any] | None):
        self.cut, self.owner, self.altered, self.stack = cut, owner, altered or nullcontext(), ExitStack()

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        arguments = self.cut.enter(site, arguments)
        if site == self.owner:
            self.stack.enter_context(self.altered)
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        if site == self.owner:
            self.stack.close()
        return self.cut.leave(site, output)


def explain_stopped(backward: Backward, session: Session) -> Diagnosis:
    """Find where torch's gradient has to stop, or not to, to be jax's: one place, or several beside each other."""
    listing = Listing()
    most = min(NEAR, distance(backward.jax, backward.torch) / CLEAR)
    if distance(backward.gradient(listing), backward.torch) > NEAR:
        return Diagnosis()

    def off(several: Sequence[Proposal]) -> float:
        """How far torch's gradient is from jax's with all of these."""
        session.calls_left -= len(backward.reference.calls)
        if session.calls_left < 0:
            return math.inf
        try:
            return distance(backward.gradient(at_once(several)), backward.jax)
        except REFUSED:
            return math.inf

    operations = [*listing.operations.values()]
    often = [*itertools.chain.from_iterable(map(usual, operations))]
    alone = sorted(itertools.chain.from_iterable(map(stops, operations)), key=lambda each: each.mutation not in session.stopped)
    both = ([*beside, each] for beside in subsets(often) for each in alone)
    for several in itertools.chain(subsets(often), ([each] for each in alone), both):
        if (residual := off(several)) <= most:
            session.stopped |= {each.mutation for each in several}
            return Diagnosis(tuple(Candidate(each.mutation, residual) for each in several), together=True)
    return Diagnosis()


def subsets(several: Sequence[Proposal]) -> Iterator[list[Proposal]]:
    """All of them but the empty one, the smaller ones first."""
    return (list(some) for n in range(1, len(several) + 1) for some in itertools.combinations(several, n))


def at_once(several: Sequence[Proposal]) -> Rewrite:
    """Inside, all of these apply, each to one operation."""
    return Rewrite({place: compute for each in several for place, compute in vars(each.edit())["altered"].items()})
