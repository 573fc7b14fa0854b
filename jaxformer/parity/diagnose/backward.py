"""Search for stopped gradients: the places where torch's gradient has to stop, or not to, to be equal to jax's."""

import copy
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from jaxformer.parity.diagnose import gradients_at_zero
from jaxformer.parity.diagnose.calls import named, of_reals
from jaxformer.parity.diagnose.computes import behind, operand, with_argument, with_operand
from jaxformer.parity.diagnose.diagnosis import Candidate, Diagnosis
from jaxformer.parity.diagnose.functions import is_real, scaled
from jaxformer.parity.diagnose.mutation import Change, Proposal
from jaxformer.parity.diagnose.numbers_and_orders import ORDINALS
from jaxformer.parity.diagnose.trace import Listing, Op, at_once
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.float_masks import MASKED
from jaxformer.parity.numerics.metrics import distance, host
from jaxformer.parity.runs.gradients_of_weights import Cut
from jaxformer.parity.runs.session import Session
from jaxformer.parity.trace.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.trace.reference import Reference, tensors_of
from jaxformer.parity.trace.torch_hooks import thawed, watch_torch

STATISTICS_STOPPED = Change("gradients.statistics_stopped", "stops the gradient of its {which:and} (`stop_gradient`)")
RELEASED = Change("gradients.released", "does not stop its gradient: `jax.lax.stop_gradient` is missing")
STOPPED = Change("gradients.stopped", "stops its gradient (`stop_gradient`)")
OPERAND_STOPPED = Change("gradients.operand_stopped", "stops the gradient of its {operand} operand (`stop_gradient`)")
ROW_TRAINED = Change("gradients.row_trained", "trains row {row}, which torch's padding_idx leaves as it is")
MASKED_SCORES = "the gradient of masked scores, which is seen where every key is masked"
MASK_STOPPED = Change("gradients.mask_stopped", f"stops {MASKED_SCORES}")
MASK_SENT = Change("gradients.mask_sent", f"does not stop {MASKED_SCORES}")
MOMENTS = (("mean", "variance"), ("variance",), ("mean",))
STATISTICS = {"batch_norm": MOMENTS, "layer_norm": MOMENTS, "rms_norm": (("mean square",),), "normalize": (("norm",),)}
"""Norms that are one operation, and the statistics whose gradients may stop."""


def stops(op: Op) -> Iterator[Proposal]:
    """Yield mutations that stop the gradient of one operation or of its operands, or that undo its `detach`. Where a place is
    reached by one operand alone, both fit, and others would tell of the whole operation: operands come first."""
    for which in STATISTICS.get(op.name, ()):
        yield op.instead(STATISTICS_STOPPED, partial(normed, which), which=which)
    if op.name in ("detach", "get_data"):
        yield op.instead(RELEASED, operand(0))
    elif is_real(op):
        floats = [i for i, x in enumerate(op.args[:3]) if of_reals(x)]
        for i in floats if len(floats) > 1 or any(map(of_reals, op.kwargs.values())) else ():
            yield op.instead(OPERAND_STOPPED, with_operand(i, torch.detach), operand=ORDINALS[i])
        yield op.instead(STOPPED, behind(torch.detach))


def usual(op: Op) -> Iterator[Proposal]:
    """Yield mutations that many ports share: gradients of the row that `padding_idx` keeps from training, and of masked scores,
    which are seen where every key of a row is masked."""
    row = op.kwargs.get("padding_idx")
    if op.name == "embedding" and row is not None:
        yield op.instead(ROW_TRAINED, with_argument("padding_idx", None), row=row)
    if op.name in ("add", "iadd", "radd") and any(of_reals(x) and bool((x <= MASKED).any()) for x in op.args):
        yield op.instead(MASK_STOPPED, masked_stopped)
    if op.name in ("masked_fill", "where") and any(goes_on(x, op.output) for x in op.args):
        yield op.instead(MASK_SENT, masked_sent)


def masked_stopped(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute an added mask, but with the gradient of `masked_fill`: none for masked scores."""
    y = function(*args, **kwargs)
    hidden = torch.stack([(x <= MASKED).expand_as(y) for x in args[:2] if isinstance(x, torch.Tensor)]).any(0)
    return torch.where(hidden, y.detach(), y)


def masked_sent(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a filled mask, but with the gradient of an addition: masked scores get one too."""
    y = function(*args, **kwargs)
    x = next(x for x in args if goes_on(x, y))
    return x + (y - x).detach()


def goes_on(x: Any, y: Any) -> bool:
    """True if both are arrays of real numbers with the same shape, so that the gradient of `y` can pass to `x` unchanged."""
    return of_reals(x) and of_reals(y) and x.shape == y.shape


def normed(which: tuple[str, ...], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a norm with the gradient of some of its statistics stopped; ValueError for running statistics, which have no
    gradient."""
    name, given = function.__name__, named(getattr(functional, function.__name__), args, kwargs)
    x, weight, bias = given["input"], given.get("weight"), given.get("bias")
    if name == "normalize":
        axis, least = given.get("dim", 1), given.get("eps", 1e-12)
        return x / torch.linalg.vector_norm(x, given.get("p", 2.0), axis, keepdim=True).clamp(min=least).detach()
    if name in ("layer_norm", "rms_norm"):
        axes, shape = [*range(-len(given["normalized_shape"]), 0)], given["normalized_shape"]
    elif given.get("training"):
        axes, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
    else:
        raise ValueError("running statistics have no gradient")
    weight, bias = (each if each is None else each.reshape(shape) for each in (weight, bias))
    if name == "rms_norm":
        epsilon = given.get("eps") or torch.finfo(x.dtype).eps
        return scaled(x / (x.square().mean(axes, keepdim=True) + epsilon).sqrt().detach(), weight, bias)
    mean, variance = x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)
    mean, variance = (each.detach() if name in which else each for name, each in (("mean", mean), ("variance", variance)))
    return scaled((x - mean) / (variance + given.get("eps", 1e-5)).sqrt(), weight, bias)


NEAR, CLEAR = 1e-9, 100
"""Tolerance (relL2) at which gradients count as equal, and the least ratio of the difference to a candidate's residual."""
REFUSED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass
class Backward:
    """Replay of the backward pass of one torch call: gives its gradient, with or without mutations."""

    reference: Reference
    owner: Site
    place: ArrayKey | tuple[str, ...]
    """Array whose gradient is compared: an input of the call or an output of a call inside it; or the names of its weights, and
    of the user's inputs: 'input 0'."""
    boundaries: set[ArrayKey]
    """Arrays that jax and torch have in common; no gradient passes through them."""
    jax: np.ndarray
    """jax's gradient, with torch's axes; those of several weights are flattened and joined."""
    torch: np.ndarray
    """torch's gradient, in the same form."""

    @cached_property
    def model(self) -> Any:
        """Private float64 copy of torch's model."""
        assert self.reference.source is not None
        return thawed(copy.deepcopy(self.reference.source.module).double()).eval()

    def gradient(self, altered: AbstractContextManager[Any] | None = None) -> np.ndarray:
        """Replay the backward pass with an edit applied while the call runs, and return torch's gradient."""
        model, reference = self.model, self.reference
        assert reference.source is not None
        given = {place for place in self.boundaries if place.part == "inputs" and place.site != self.owner}
        passing = {place for place in given if is_stopped(reference, place)}
        makers = {self.owner, *(place.site for place in passing)}
        made = {ArrayKey(site, "output", i) for site in makers for i in range(len(reference.calls[site].output))}
        observer = _Inside(Cut(reference.calls, given | made, self.boundaries - passing), self.owner, altered)
        inputs = {f"input {i}": tensor for i, tensor in enumerate(tensors_of(reference.inputs, torch.float64))}
        names = () if isinstance(self.place, ArrayKey) else self.place
        for name in inputs.keys() & {*names}:
            inputs[name].requires_grad_()
        with torch.enable_grad(), torch_float64():
            with watch_torch(model, observer), observer.stack:
                observer.enter(CALL, ())
                observer.leave(CALL, reference.source.call(model, *inputs.values()))
            if isinstance(self.place, ArrayKey):
                leaves = [observer.cut.leaves[self.place]]
            else:
                leaves = [inputs[name] if name in inputs else model.get_parameter(name) for name in self.place]
            found = torch.autograd.grad(observer.cut.total, leaves, allow_unused=True, materialize_grads=True)
        return flat(map(host, found)) if names else host(found[0])


def is_stopped(reference: Reference, place: ArrayKey) -> bool:
    """True if torch gives an input of real numbers no gradient: jax's gradient passes on there, if it has one."""
    record = reference.calls[place.site]
    if place.number >= len(record.inputs) or record.inputs[place.number].dtype.kind != "f":
        return False
    return place.number >= len(record.input_gradients) or record.input_gradients[place.number] is None


def flat(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Flatten the arrays and join them into one vector."""
    return np.concatenate([np.ravel(each) for each in arrays])


class _Inside:
    """Observer that applies an edit to torch while the call of `owner` runs."""

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
    """Find where torch's gradient has to stop, or not to, to be equal to jax's: one place, or several together."""
    listing, wanted = Listing(), as_nan(backward.jax)
    most = min(NEAR, distance(backward.jax, backward.torch) / CLEAR)
    if distance(backward.gradient(listing), backward.torch) > NEAR:
        return Diagnosis()

    def off(several: Sequence[Proposal]) -> float:
        """Distance (relL2) of torch's gradient from jax's with all of these mutations; infinite once the calls are used up."""
        session.calls_left -= len(backward.reference.calls)
        if session.calls_left < 0:
            return math.inf
        try:
            return distance(as_nan(backward.gradient(at_once(each.edit() for each in several))), wanted)
        except REFUSED:
            return math.inf

    operations = [*listing.operations.values()]
    if not np.isfinite(wanted).all():
        return of_zeros(operations, off, told=bool(np.isfinite(wanted).any()))
    often = [*itertools.chain.from_iterable(map(usual, operations))]
    alone = sorted(itertools.chain.from_iterable(map(stops, operations)), key=lambda each: each.mutation not in session.stopped)
    both = ([*beside, each] for beside in subsets(often) for each in alone)
    for several in itertools.chain(subsets(often), ([each] for each in alone), both):
        if (residual := off(several)) <= most:
            session.stopped |= {each.mutation for each in several}
            return Diagnosis(tuple(Candidate(each.mutation, residual) for each in several), together=True)
    return Diagnosis()


def of_zeros(operations: Sequence[Op], off: Callable[[Sequence[Proposal]], float], *, told: bool) -> Diagnosis:
    """Find the operation whose gradient at zero is NaN in jax. It is ambiguous if other operations fit too, or unless the
    gradient has finite entries too (`told`)."""
    tried = ((each, off([each])) for op in operations for each in gradients_at_zero.proposals(op))
    found = [Candidate(each.mutation, residual) for each, residual in tried if residual <= NEAR]
    sure = told and len(found) == 1
    return Diagnosis(tuple(each if sure else replace(each, certainty="ambiguous") for each in found[:1]))


def as_nan(gradient: np.ndarray) -> np.ndarray:
    """Put NaN in the place of infinities."""
    return np.where(np.isfinite(gradient), gradient, np.nan)


def subsets(several: Sequence[Proposal]) -> Iterator[list[Proposal]]:
    """Yield all subsets but the empty one, the smaller ones first."""
    return (list(some) for n in range(1, len(several) + 1) for some in itertools.combinations(several, n))
