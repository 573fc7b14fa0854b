"""Losses: one number, which many changes of torch's code can give. So a change has to give jax's gradients too."""

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Listing, Operation
from jaxformer.parity.explain.alterations.rerun import Rerun, running
from jaxformer.parity.numerics.metrics import distance, host
from jaxformer.parity.record.outputs import side_by_side

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
                total = (side_by_side(rerun.run_model()) * torch.as_tensor(rerun.cotangent)).sum()
            wanted = [parameters[name] for name in names]
            return torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
        finally:
            for name in names:
                parameters[name].requires_grad_(False)


class Loss(NamedTuple):
    """A call of torch's cross-entropy, or of nll_loss."""

    given: dict[str, Any]
    """Its arguments, all of them by name."""
    valid: Any
    """Which targets are not ignored: all, where they are probabilities."""
    shares: Any
    """What torch's mean divides by, target by target: the weights of their classes, or 1."""

    @classmethod
    def of(cls, operation: Operation) -> "Loss":
        given = inspect.signature(operation.function).bind(*operation.args, **operation.kwargs)
        given.apply_defaults()
        logits, targets, weight, ignored = (given.arguments[name] for name in ("input", "target", "weight", "ignore_index"))
        if targets.is_floating_point():
            valid = torch.ones_like(logits.select(class_axis(logits), 0), dtype=torch.bool)
            return cls(given.arguments, valid, valid.double())
        valid = targets != ignored
        shares = valid.double() if weight is None else weight[torch.where(valid, targets, 0)] * valid
        return cls(given.arguments, valid, shares)

    @property
    def is_weighted(self) -> bool:
        """Whether torch's mean divides by weights."""
        return self.given["weight"] is not None and not self.given["target"].is_floating_point()


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """How cross-entropy may be averaged, smoothed and masked otherwise."""
    if rerun.wanted.size > 1:
        return
    listing = Listing()
    rerun.array(listing)
    for operation in listing.operations.values():
        if operation.name in ("cross_entropy", "nll_loss"):
            yield from of_cross_entropy(operation)


def of_cross_entropy(operation: Operation) -> Iterator[Alteration | Dial]:
    """One operation."""
    loss = Loss.of(operation)
    if loss.given["size_average"] is not None or loss.given["reduce"] is not None:
        return  # torch's old ways to say how it is averaged
    if loss.given["reduction"] != "none":
        yield from of_averages(operation, loss)
    if loss.given["weight"] is not None:
        yield instead(operation, "weighs all classes alike", partial(otherwise, weight=None))
    if "label_smoothing" in loss.given:
        yield from of_smoothing(operation, loss)
        yield from of_squares(operation, loss)


def of_averages(operation: Operation, loss: Loss) -> Iterator[Alteration]:
    """What the sum of the losses is divided by."""
    for says, divisor in divisors(loss):
        yield instead(operation, says, lambda *call, divisor=divisor: losses(*call).sum() / divisor)
    n, is_mean = loss.valid.numel(), loss.given["reduction"] == "mean"
    for rows in (rows for rows in range(2, min(n, MOST_ROWS + 1)) if n % rows == 0):
        if is_mean:
            says = f"averages each of {rows} rows first"
            yield instead(operation, says, lambda *call, rows=rows: by_rows(losses(*call), loss.shares, rows))
        yield instead(operation, f"divides by {rows}", lambda *call, rows=rows: losses(*call).sum() / rows)


def divisors(loss: Loss) -> Iterator[tuple[str, float]]:
    """Those of which torch has another one, and what is said of each."""
    n, count, total = loss.valid.numel(), int(loss.valid.sum()), float(loss.shares.sum())
    valid = f"the {count} that are not {loss.given['ignore_index']}" if count < n else "all"
    weights = "the sum of their weights" if count == n else f"the sum of the weights of {valid}"
    if loss.given["reduction"] == "sum":
        torchs, own = "torch by nothing", 1.0
    else:
        torchs, own = f"torch by {weights if loss.is_weighted else valid}", total
        yield "sums over the targets", 1.0
    each = {f"all {n} targets": float(n)}
    each |= {f"{valid.replace('that', 'targets that')}": float(count)} if count < n else {}
    each |= {weights: total} if loss.is_weighted else {}
    yield from ((f"divides by {what}, {torchs}", by) for what, by in each.items() if by != own)


def of_smoothing(operation: Operation, loss: Loss) -> Iterator[Alteration | Dial]:
    """Of labels."""
    smoothing, classes = loss.given["label_smoothing"], loss.given["input"].shape[class_axis(loss.given["input"])]
    if smoothing:
        yield instead(operation, "smooths no labels", partial(otherwise, label_smoothing=0.0))
        says = f"smooths by {smoothing:g} over the other classes alone"
        yield instead(operation, says, partial(otherwise, label_smoothing=smoothing * classes / (classes - 1)))
    says = f"smooths labels by {{}}, torch by {smoothing:g}"
    yield Dial(
        f"computes {operation.source}",
        says,
        smoothing,
        lambda number: operation.inside(partial(otherwise, label_smoothing=number)),
        sure=True,
    )


def of_squares(operation: Operation, loss: Loss) -> Iterator[Dial]:
    """A z-loss beside it, of the targets that count or of all."""
    ignored = [] if loss.valid.all() else [(torch.ones_like(loss.valid), ", of ignored targets too")]
    for counted, more in ((loss.valid, ""), *ignored):
        says = f"adds {{}} times the mean square of logsumexp (z-loss{more})"
        computes, other = f"computes {operation.source}", partial(with_z_loss, counted)
        yield Dial(computes, says, 0.0, lambda number, other=other: operation.inside(partial(other, number)), sure=True)


def class_axis(logits: Any) -> int:
    """That of the classes."""
    return min(1, logits.ndim - 1)


def otherwise(function: Any, args: Any, kwargs: Any, n: int, **other: Any) -> Any:
    """torch's, with other arguments."""
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    return function(**{**given, **other})


def losses(*call: Any) -> Any:
    """Of each target."""
    return otherwise(*call, reduction="none")


def by_rows(found: Any, shares: Any, rows: int) -> Any:
    """The mean of the means."""
    return (found.reshape(rows, -1).sum(1) / shares.reshape(rows, -1).sum(1)).mean()


def with_z_loss(counted: Any, weight: float, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """torch's, and the mean of logsumexp squared."""
    logits = (*args, kwargs.get("input"))[0]
    squares = torch.logsumexp(logits, class_axis(logits)).square()
    return function(*args, **kwargs) + weight * (squares * counted).sum() / counted.sum()
