"""Losses: one number, which many changes of torch's code can give. So a change has to give jax's gradients too."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Altered, Listing, Operation
from jaxformer.parity.explain.alterations.rerun import Rerun, running
from jaxformer.parity.numerics.metrics import distance, host

NEAR = 1e-9
"""relL2 of gradients that count as the same."""
MOST_ROWS = 64


def is_certain(rerun: Rerun, alteration: Alteration, *, solved: bool) -> bool:
    """Whether it is more than a number that fits: where torch's array is one number, it has to give jax's gradients; where
    there are none, nothing may have been solved for."""
    if rerun.wanted.size > 1:
        return True
    if not rerun.jax_gradients:
        return not solved
    names = [name for name, parameter in rerun.model.named_parameters() if name in rerun.jax_gradients]
    try:
        found = gradients(rerun, alteration, names)
    except (RuntimeError, TypeError, ValueError):
        return False
    return all(distance(host(each), rerun.jax_gradients[name]) <= NEAR for name, each in zip(names, found, strict=True))


def gradients(rerun: Rerun, alteration: Alteration | None, names: list[str]) -> tuple[Any, ...]:
    """torch's, of these parameters, with something altered."""
    parameters = dict(rerun.model.named_parameters())
    with running(), torch.enable_grad():
        for name in names:
            parameters[name].requires_grad_()
        try:
            with alteration.inside() if alteration else nullcontext():
                total = (rerun.run_model() * torch.as_tensor(rerun.cotangent)).sum()
            wanted = [parameters[name] for name in names]
            return torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
        finally:
            for name in names:
                parameters[name].requires_grad_(False)


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """How cross-entropy may be averaged, smoothed and masked otherwise."""
    if rerun.wanted.size > 1:
        return
    listing = Listing()
    rerun.array(listing)
    for operation in listing.operations.values():
        if operation.name == "cross_entropy":
            yield from of_cross_entropy(operation)


def of_cross_entropy(operation: Operation) -> Iterator[Alteration | Dial]:
    """One operation."""
    ignored, smoothing = operation.kwargs.get("ignore_index", -100), operation.kwargs.get("label_smoothing", 0.0)
    targets = operation.args[1] if len(operation.args) > 1 else operation.kwargs["target"]
    valid, n = targets != ignored, targets.numel()
    count, computes = int(valid.sum()), f"computes {operation.source}"
    yield instead(operation, "sums over the targets", lambda *call: losses(*call).sum())
    if count < n:
        says = f"divides by all {n} targets, torch by the {count} that are not {ignored}"
        yield instead(operation, says, lambda *call: losses(*call).sum() / n)
    for rows in (rows for rows in range(2, min(n, MOST_ROWS + 1)) if n % rows == 0):
        says = f"averages each of {rows} rows first"
        yield instead(operation, says, lambda *call, rows=rows: by_rows(losses(*call), valid, rows))
        yield instead(operation, f"divides by {rows}", lambda *call, rows=rows: losses(*call).sum() / rows)
    if smoothing:
        yield instead(operation, "smooths no labels", lambda f, a, k, n: f(*a, **{**k, "label_smoothing": 0.0}))
        says = f"smooths by {smoothing:g} over the other classes alone"
        yield instead(operation, says, partial(over_others, smoothing))
    other = partial(altered, operation, with_smoothing)
    yield Dial(computes, f"smooths labels by {{}}, torch by {smoothing:g}", smoothing, other, sure=True)
    for counted, more in ((valid, ""), (torch.ones_like(valid), ", of ignored targets too")):
        says = f"adds {{}} times the mean square of logsumexp (z-loss{more})"
        yield Dial(computes, says, 0.0, partial(altered, operation, partial(with_z_loss, counted)), sure=True)


def altered(operation: Operation, compute: Callable[..., Any], number: float) -> Altered:
    """The operation computes something else, of a number."""
    return Altered({operation.place: partial(compute, number)})


def losses(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Of each target."""
    return function(*args, **{**kwargs, "reduction": "none"})


def with_smoothing(smoothing: float, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Of labels."""
    return function(*args, **{**kwargs, "label_smoothing": smoothing})


def by_rows(found: Any, valid: Any, rows: int) -> Any:
    """The mean of the means."""
    own, kept = found.reshape(rows, -1), valid.reshape(rows, -1)
    return (own.sum(1) / kept.sum(1)).mean()


def over_others(smoothing: float, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """eps / (K - 1) for each other class: torch's with eps K / (K - 1)."""
    classes = args[0].shape[1]
    return function(*args, **{**kwargs, "label_smoothing": smoothing * classes / (classes - 1)})


def with_z_loss(valid: Any, weight: float, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """torch's, and the mean of logsumexp squared. args[0]: `N V`."""
    squares = torch.logsumexp(args[0], 1).square()
    return function(*args, **kwargs) + weight * (squares * valid).sum() / valid.sum()
