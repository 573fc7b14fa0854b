"""Where in torch's code a gradient would have to stop, to come back as jax's does."""

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from jaxformer.parity.capture.call_sites import CALL, ArrayKey, Site
from jaxformer.parity.capture.torch_hooks import watch_torch
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead, is_real
from jaxformer.parity.explain.alterations.operations import Listing, Operation
from jaxformer.parity.numerics.float64 import torch_float64
from jaxformer.parity.numerics.metrics import distance, host
from jaxformer.parity.record.partial_gradients import Cut
from jaxformer.parity.record.reference import Reference, tensors_of
from jaxformer.parity.record.torch_state import thawed

NEAR = 1e-9
"""relL2 of gradients that count as the same."""
MOST_CALLS = 16_000
"""Of torch's modules that are run again, at most, for all gradients of a comparison."""
REFUSED = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass
class Backward:
    """What one torch call sends back, again and again."""

    reference: Reference
    owner: Site
    place: ArrayKey
    """Whose gradient it is: of its own input, or of what a call inside of it gives."""
    borders: set[ArrayKey]
    """Where jax and torch have the same arrays; no gradient goes through them."""

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
        made = {ArrayKey(self.owner, "output", i) for i in range(len(reference.calls[self.owner].output))}
        observer = _Inside(Cut(reference.calls, given | made, self.borders), self.owner, altered)
        with torch.enable_grad(), torch_float64(), watch_torch(model, observer), observer.stack:
            reference.source.call(model, *tensors_of(reference.inputs, torch.float64))
        leaf = observer.cut.leaves[self.place]
        return host(torch.autograd.grad(observer.cut.total, leaf, allow_unused=True, materialize_grads=True)[0])


class _Inside:
    """An observer: torch is altered while one call runs."""

    def __init__(self, cut: Cut, owner: Site, altered: AbstractContextManager[Any] | None):
        self.cut, self.owner, self.altered, self.stack = cut, owner, altered or nullcontext(), ExitStack()
        if owner == CALL:
            self.stack.enter_context(self.altered)

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        arguments = self.cut.enter(site, arguments)
        if site == self.owner:
            self.stack.enter_context(self.altered)
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        if site == self.owner:
            self.stack.close()
        return self.cut.leave(site, output)


def explain_stopped(backward: Backward, torchs: np.ndarray, jaxs: np.ndarray, hints: dict[Any, Any]) -> str:
    """'torch computes `y.mean((2, 3))` (net.py:8); jax stops its gradient'; '' where that is not why.

    `hints` has what explained other modules, and how many calls are left.
    """
    known, listing = hints.setdefault("stops", set()), Listing()
    if distance(backward.gradient(listing), torchs) > NEAR:
        return ""
    every = [each for operation in listing.operations.values() for each in stops(operation)]
    for alteration in sorted(every, key=lambda each: each[:2] not in known):
        hints["calls for stops"] = hints.get("calls for stops", MOST_CALLS) - len(backward.reference.calls)
        if hints["calls for stops"] < 0:
            break
        try:
            residual = distance(backward.gradient(alteration.inside()), jaxs)
        except REFUSED:
            continue
        if residual <= NEAR:
            known.add(alteration[:2])
            return f"{alteration} (residual {residual:.0e})"
    return ""


def stops(operation: Operation) -> Iterator[Alteration]:
    """Of one operation."""
    if operation.name in STATISTICS:
        for says, which in (("mean and variance", (0, 1)), ("variance", (1,)), ("mean", (0,))):
            stop = partial(STATISTICS[operation.name], which)
            yield instead(operation, f"stops the gradient of its {says}", lambda f, a, k, n, stop=stop: stop(*a, **k))
    if not is_real(operation):
        return
    yield instead(operation, "stops its gradient", lambda f, a, k, n: f(*a, **k).detach())
    floats = [i for i, x in enumerate(operation.args[:3]) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for i in floats if len(floats) > 1 else ():
        says = f"stops the gradient of its {('first', 'second', 'third')[i]} operand"
        yield instead(operation, says, lambda f, a, k, n, i=i: f(*a[:i], a[i].detach(), *a[i + 1 :], **k))


def stopped_batch_norm(which: tuple[int, ...], x: Any, mean: Any, var: Any, *others: Any, **named: Any) -> Any:
    """By the statistics of the batch."""
    held = dict(zip(("weight", "bias", "training", "momentum", "eps"), others, strict=False)) | named
    if not held.get("training"):
        raise ValueError("running statistics have no gradient")
    axes, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
    weight, bias = (each if each is None else each.reshape(shape) for each in (held.get("weight"), held.get("bias")))
    return normed(which, x, axes, weight, bias, held.get("eps", 1e-5))


def stopped_layer_norm(which: tuple[int, ...], x: Any, shape: Any, *others: Any, **named: Any) -> Any:
    """Over the last axes."""
    held = dict(zip(("weight", "bias", "eps"), others, strict=False)) | named
    return normed(which, x, [*range(-len(shape), 0)], held.get("weight"), held.get("bias"), held.get("eps", 1e-5))


def normed(which: tuple[int, ...], x: Any, axes: list[int], weight: Any, bias: Any, eps: float) -> Any:
    """With the gradient of some of its statistics stopped."""
    mean, variance = x.mean(axes, keepdim=True), x.var(axes, correction=0, keepdim=True)
    mean, variance = (each.detach() if i in which else each for i, each in enumerate((mean, variance)))
    y = (x - mean) / (variance + eps).sqrt()
    return (y if weight is None else y * weight) + (0 if bias is None else bias)


STATISTICS = {"batch_norm": stopped_batch_norm, "layer_norm": stopped_layer_norm}
"""Of norms that are one operation."""
