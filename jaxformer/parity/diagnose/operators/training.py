"""Mutations of losses, and of dropout: left out, not scaled, inverted, at another rate, or on another operation's output.

A loss is one number, which many mutations give: a candidate has to give jax's gradients too."""

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from jaxformer.parity.diagnose.calls import named
from jaxformer.parity.diagnose.computes import Compute, behind, with_named
from jaxformer.parity.diagnose.mutation import Change, Edit, Free, Proposal, Target, grouped, propose, together, words_of
from jaxformer.parity.diagnose.operators.arguments import numbers_in, with_literal
from jaxformer.parity.diagnose.replay import Replay, running
from jaxformer.parity.diagnose.trace import Op, Rewrite
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, distance, host, is_null, rms
from jaxformer.parity.trace.draws import DROPOUT, UNIFORM, Draw, mutated_draws, numbers_of
from jaxformer.parity.trace.draws import Change as DrawChange
from jaxformer.parity.trace.outputs import side_by_side

DIVISORS = {
    "nothing": "nothing",
    "targets": "all {n} targets",
    "counted": "the {count} targets that are not {ignored}",
    "weights": "the sum of their weights",
    "counted weights": "the sum of the weights of the {count} that are not {ignored}",
}
OWN = DIVISORS | {"targets": "all", "counted": "the {count} that are not {ignored}"}
DIVIDED = Change(
    "losses.divisor",
    {f"{by} for {was}": f"divides by {DIVISORS[by]}, torch by {OWN[was]}" for by in DIVISORS for was in OWN},
)
SUMMED = Change("losses.sum", "sums over the targets, without a mean")
ROWS_FIRST = Change("losses.rows_first", "takes the mean of each of {rows} rows first, then over rows")
ENDS = {"first": slice(1, None), "last": slice(None, -1)}
"""Targets of a row that are left out -> those that are kept."""
END_LEFT_OUT = Change("losses.end_left_out", "leaves out the {which} target of each of {rows} rows")
NOT_IGNORED = Change("losses.not_ignored", "takes class {other} for targets of {ignored}, torch ignores them")
DIVIDED_BY_ROWS = Change("losses.rows_divisor", "divides by the number of rows, {rows}")
UNWEIGHTED = Change("losses.unweighted", "does not weigh classes")
UNSMOOTHED = Change("losses.unsmoothed", "does not smooth labels")
SMOOTHED_OTHERS = Change("losses.smoothed_others", "shares {was:g} among the other classes alone")
SMOOTHED = Change("losses.smoothing", "smooths labels by {value}, torch by {was:g}")
Z_LOSS = Change(
    "losses.z_loss",
    {
        "counted": "adds {value} times the mean square of logsumexp (z-loss)",
        "all": "adds {value} times the mean square of logsumexp (z-loss, of ignored targets too)",
    },
)
EXCHANGED = Change("losses.exchanged", "exchanges the two distributions")
NEAR = 1e-9
"""Tolerance (relL2) of gradients that count as equal."""
MOST_ROWS = 64
EACH = with_named(reduction="none")
"""Computes the loss of each target."""


def is_certain(replay: Replay, proposal: Proposal, *, solved: bool) -> bool:
    """True if a proposal that gives jax's array is certain. Where the array is one number, it has to give jax's gradients too;
    without gradients, it may have no free parameter that was solved for."""
    if replay.wanted.size > 1:
        return True
    if not replay.jax_gradients:
        return not solved
    names = [name for name, parameter in replay.model.named_parameters() if name in replay.jax_gradients]
    try:
        found = gradients(replay, proposal, names)
    except (RuntimeError, TypeError, ValueError):
        return False
    pairs = [(host(each), replay.jax_gradients[name]) for name, each in zip(names, found, strict=True)]
    noise = NULL_GRADIENT * rms(own for _, own in pairs)
    return all(is_null(each, own, noise) or distance(each, own) <= NEAR for each, own in pairs)


def gradients(replay: Replay, proposal: Proposal | None, names: list[str]) -> tuple[Any, ...]:
    """Compute torch's gradients of the parameters `names`, with a mutation if there is one."""
    parameters = dict(replay.model.named_parameters())
    wanted = [parameters[name] for name in names]
    with running(), torch.enable_grad():
        for parameter in wanted:
            parameter.requires_grad_()
        try:
            with proposal.edit() if proposal else nullcontext():
                total = (side_by_side(replay.run_model()) * torch.as_tensor(replay.cotangent)).sum()
            return torch.autograd.grad(total, wanted, allow_unused=True, materialize_grads=True)
        finally:
            for parameter in wanted:
                parameter.requires_grad_(False)


class Loss(NamedTuple):
    """Call of torch's `cross_entropy` or `nll_loss`."""

    given: dict[str, Any]
    """All arguments by name."""
    valid: Any
    """Mask, True where a target is not ignored; all True where targets are probabilities."""
    shares: Any
    """Share of each target in the divisor of torch's mean: the weight of its class, or 1; 0 for an ignored target."""

    @classmethod
    def of(cls, op: Op) -> "Loss":
        """Bind the arguments of a call, with torch's defaults."""
        bound = inspect.signature(op.function).bind(*op.args, **op.kwargs)
        bound.apply_defaults()
        logits, targets, weight, ignored = (bound.arguments[name] for name in ("input", "target", "weight", "ignore_index"))
        if targets.is_floating_point():
            valid = torch.ones_like(logits.select(class_axis(logits), 0), dtype=torch.bool)
        else:
            valid = targets != ignored
            if weight is not None:
                return cls(bound.arguments, valid, weight[torch.where(valid, targets, 0)] * valid)
        return cls(bound.arguments, valid, valid.double())


def losses(replay: Replay) -> Iterator[Proposal]:
    """Mutations of cross-entropy: other averages, targets that are not ignored, no class weights, other smoothings of labels, a
    z-loss."""
    for op in replay.listed if replay.wanted.size <= 1 else ():
        if op.function is functional.kl_div:
            yield op.instead(EXCHANGED, exchanged)
        if op.function not in (functional.cross_entropy, functional.nll_loss):
            continue
        loss = Loss.of(op)
        if loss.given["size_average"] is not None or loss.given["reduce"] is not None:
            continue  # deprecated arguments in place of `reduction`
        if loss.given["reduction"] != "none":
            yield from averages(op, loss)
        for other in (0, classes_of(loss) - 1) if not loss.valid.all() else ():
            target = torch.where(loss.valid, loss.given["target"], other)
            yield op.instead(NOT_IGNORED, with_named(target=target), other=other, ignored=loss.given["ignore_index"])
        if loss.given["weight"] is not None:
            yield op.instead(UNWEIGHTED, with_named(weight=None))
        if "label_smoothing" in loss.given:
            yield from smoothings(op, loss)
            yield from z_losses(op, loss)


def exchanged(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a Kullback-Leibler divergence with its two distributions exchanged."""
    given = named(function, args, kwargs)
    log, target = given["input"], given["target"]
    both = (target, log) if given.get("log_target") else (target.log(), log.exp())
    return function(**given | dict(zip(("input", "target"), both, strict=True)))


def averages(op: Op, loss: Loss) -> Iterator[Proposal]:
    """Mutations of the divisor of the summed losses."""
    n, count, total = loss.valid.numel(), int(loss.valid.sum()), float(loss.shares.sum())
    valid, weights = ("counted", "counted weights") if count < n else ("targets", "weights")
    is_weighted = loss.given["weight"] is not None and not loss.given["target"].is_floating_point()
    divisors = {"targets": n, valid: count} | ({weights: total} if is_weighted else {})
    is_mean = loss.given["reduction"] == "mean"
    was = [*divisors][-1] if is_mean else "nothing"
    if is_mean:
        yield op.instead(SUMMED, divided(1))
    for by, divisor in divisors.items():
        if divisor != (total if is_mean else 1):
            words = {"how": f"{by} for {was}", "n": n, "count": count, "ignored": loss.given["ignore_index"]}
            yield op.instead(DIVIDED, divided(divisor), **words)
    for rows in (rows for rows in range(2, min(n, MOST_ROWS + 1)) if n % rows == 0):
        if is_mean:
            yield op.instead(ROWS_FIRST, by_rows(loss.shares, rows), rows=rows)
        for which, kept in ENDS.items() if is_mean else ():
            yield op.instead(END_LEFT_OUT, of_targets(loss.shares, rows, kept), which=which, rows=rows)
        yield op.instead(DIVIDED_BY_ROWS, divided(rows), rows=rows)


def smoothings(op: Op, loss: Loss) -> Iterator[Proposal]:
    """Mutations of label smoothing."""
    smoothing, classes = loss.given["label_smoothing"], classes_of(loss)
    if smoothing:
        yield op.instead(UNSMOOTHED, with_named(label_smoothing=0.0))
        more = with_named(label_smoothing=smoothing * classes / (classes - 1))
        yield op.instead(SMOOTHED_OTHERS, more, was=smoothing)
    free = Free(smoothing, sure=True)
    yield op.solving(SMOOTHED, free, lambda number: with_named(label_smoothing=number), was=smoothing)


def z_losses(op: Op, loss: Loss) -> Iterator[Proposal]:
    """Mutations that add a z-loss, over the targets that are not ignored or over all."""
    for how, counted in {"counted": loss.valid, "all": torch.ones_like(loss.valid)}.items():
        if how == "counted" or not loss.valid.all():
            yield op.solving(Z_LOSS, Free(0.0, sure=True), partial(partial, with_z_loss, counted), how=how)


def class_axis(logits: Any) -> int:
    """Axis of the classes."""
    return min(1, logits.ndim - 1)


def classes_of(loss: Loss) -> int:
    """Number of classes."""
    return loss.given["input"].shape[class_axis(loss.given["input"])]


def divided(divisor: float) -> Compute:
    """Compute the sum of the losses of all targets, divided by a number."""
    return behind(lambda losses: losses.sum() / divisor, EACH)


def by_rows(shares: Any, rows: int) -> Compute:
    """Compute the mean of each of `rows` rows, and the mean of these."""
    return behind(lambda losses: (losses.reshape(rows, -1).sum(1) / shares.reshape(rows, -1).sum(1)).mean(), EACH)


def of_targets(shares: Any, rows: int, kept: slice) -> Compute:
    """Compute the mean of the losses of some targets of each of `rows` rows."""
    some = shares.reshape(rows, -1)[:, kept]
    return behind(lambda losses: losses.reshape(rows, -1)[:, kept].sum() / some.sum(), EACH)


def with_z_loss(counted: Any, weight: float, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute the loss plus `weight` times the mean squared logsumexp of the `counted` targets."""
    logits = named(function, args, kwargs)["input"]
    squares = torch.logsumexp(logits, class_axis(logits)).square()
    return function(*args, **kwargs) + weight * (squares * counted).sum() / counted.sum()


PART_KEPT = Change("dropout.part_kept", "keeps {part:g}", "keeps the part {was:g} in {0}")
RATE = Change("dropout.rate", "has {rate:g} for that rate", "has {0}")
MOVED = Change("dropout.moved", "drops what {1} gives instead", "has {0}")
DRAWS: dict[str, tuple[str, DrawChange]] = {
    "left_out": ("does not drop there", lambda kept, keep: torch.full_like(kept, keep)),
    "unscaled": ("does not divide by the part kept (1 - rate)", lambda kept, keep: kept * keep),
    "inverted": ("keeps what torch drops", lambda kept, keep: 1 - kept),
}
"""Mutations of a draw, `change(kept, keep)`: `kept` is 1 where a unit is kept. torch divides by `keep` afterwards."""
DRAWN = Change("dropout.drawn", words_of(DRAWS), "has {targets:and}")
RATES = tuple(n / 100 for n in range(1, 100))
"""Rates of dropout, or parts kept, that are tried."""


def dropouts(replay: Replay) -> Iterator[Proposal]:
    """Mutations of what a call drops in training mode: by torch's dropout, or by uniform numbers that its code draws."""
    noted: list[Draw] = []
    with mutated_draws({}, noted):
        replay.array()
    if any(draw.kind == UNIFORM for draw in noted):
        yield from parts_kept(replay.operations)
    dropped = [draw for draw in dict.fromkeys(noted) if draw.kind == DROPOUT]
    for draws in (*([draw] for draw in dropped), dropped) if dropped else ():
        for how, (_, change) in DRAWS.items():
            yield propose(DRAWN, tuple(map(target, draws)), partial(drawn, draws, change), how=how)
    for draw in dropped:
        for rate in RATES:
            yield propose(RATE, target(draw), partial(drawn, [draw], partial(at_rate, draw, rate)), rate=rate)
    for draw in dropped:
        for op in replay.listed:
            if isinstance(op.output, torch.Tensor) and tuple(op.output.shape) == draw.shape:
                yield propose(MOVED, (target(draw), op.target), partial(moved, draw, op))


def target(draw: Draw) -> Target:
    """Target of a draw, in words that hold for torch and jax."""
    return Target(draw.says)


def drawn(draws: list[Draw], change: DrawChange) -> Edit:
    """Edit in which `change` is applied to these draws."""
    return mutated_draws({(draw.path, draw.number): change for draw in draws})


def at_rate(draw: Draw, rate: float, kept: torch.Tensor, keep: float) -> torch.Tensor:
    """Compute a draw at another rate from the same uniform numbers, scaled so that torch's division by `keep` fits that
    rate."""
    uniform = torch.from_numpy(numbers_of(replace(draw, kind=UNIFORM)))
    return (uniform < 1 - rate).to(kept.dtype) * keep / (1 - rate)


def moved(draw: Draw, op: Op) -> Edit:
    """Edit in which the same units are dropped from the output of `op` instead."""
    factor = torch.from_numpy(numbers_of(draw)) / draw.keep
    rewrite = Rewrite({op.place: behind(lambda y: y * factor)})
    return together(drawn([draw], DRAWS["left_out"][1]), rewrite)


def parts_kept(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of the part kept, in code that draws uniform numbers itself: a number between 0 and 1, wherever the code has
    it."""
    numbers = (each for each in numbers_in(operations) if 0 < each[2] < 1)
    for number, those in grouped(numbers, itemgetter(2)).items():
        for part in RATES:
            yield propose(PART_KEPT, those[0][0].target, partial(with_literal, those, part), part=part, was=number)
