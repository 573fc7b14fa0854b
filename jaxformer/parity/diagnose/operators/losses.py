"""Mutations of loss functions."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, product
from typing import Any

import torch
from torch.nn import functional

from jaxformer.parity.diagnose.calls import named, of_reals
from jaxformer.parity.diagnose.computes import behind, noting, with_named
from jaxformer.parity.diagnose.functions import is_near, is_real
from jaxformer.parity.diagnose.mutation import Change, Edit, Free, Proposal, Target, propose
from jaxformer.parity.diagnose.numbers_and_orders import say
from jaxformer.parity.diagnose.reductions import EACH, Loss, class_axis
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.solve import off
from jaxformer.parity.diagnose.trace import Op, Rewrite, same

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
NOT_IGNORED = Change("losses.not_ignored", "takes class {other} for targets of {ignored}, torch ignores them")
UNWEIGHTED = Change("losses.unweighted", "does not weigh classes")
UNSMOOTHED = Change("losses.unsmoothed", "does not smooth labels")
SMOOTHED_OTHERS = Change("losses.smoothed_others", "shares {was:g} among the other classes alone")
SMOOTHED = Change("losses.smoothing", "smooths labels by {value}, torch by {was:g}")


def z_loss(args: dict[str, Any]) -> str:
    """Return words for a z-loss that jax adds; of a negative one, for torch's own, which jax leaves out."""
    number = args.get("value") or 0.0
    kind = "z-loss" if args["how"] == "counted" else "z-loss, of ignored targets too"
    return f"{'leaves out' if number < 0 else 'adds'} {say(abs(number))} times the mean square of logsumexp ({kind})"


Z_LOSS = Change("losses.z_loss", z_loss)
EXCHANGED = Change("losses.exchanged", "exchanges the two distributions")
Formulas = dict[str, Callable[..., torch.Tensor]]
DIVERGENCES: Formulas = {
    "exp(d) - d - 1": lambda d: d.exp() - d - 1,
    "exp(-d) + d - 1": lambda d: (-d).exp() + d - 1,
    "d^2 / 2": lambda d: d.square() / 2,
    "-d": lambda d: -d,
    "d": lambda d: d.clone(),
    "|d|": lambda d: d.abs(),
}
"""Estimators of a Kullback-Leibler divergence from d, a difference of log-probabilities (Schulman 2020, k1 to k3)."""
PREFERENCES: Formulas = {
    "log(1 + exp(-d))": lambda d: functional.softplus(-d),
    "max(0, 1 - d)": lambda d: (1 - d).relu(),
    "exp(-d)": lambda d: (-d).exp(),
}
"""Losses of a margin d between what is preferred and what is not (Rafailov 2023; Zhao 2023)."""
FAMILIES = (DIVERGENCES, 3), (PREFERENCES, 2)
"""Formulas that are taken for one another, and how many of them are recognised in torch's code: the others are too simple."""


def smoothed(share: float, d: torch.Tensor) -> torch.Tensor:
    """Loss of a margin in which a share of the labels is the other one. ValueError for more than half of them, or for none."""
    if not 0 < share <= 0.5:
        raise ValueError(f"{share} is no share of labels")
    return (1 - share) * functional.softplus(-d) + share * functional.softplus(d)


SOLVED: Formulas = {
    "((d - 1/2) {value})^2": lambda c, d: ((d - 0.5) * c).square(),
    "(1 - {value}) log(1 + exp(-d)) + {value} log(1 + exp(d))": smoothed,
}
"""Losses of a margin with a number that is solved for: IPO's (Azar 2023), and one whose labels are smoothed."""
SIGNED = {1: "{}", -1: "-({})"}
FORM = Change(
    "losses.form",
    lambda args: f"has {SIGNED[args['sign']].format(args['other'])} there, with d = {{1}}",
    lambda args: f"computes {{0}} = {SIGNED[args['sign']].format(args['own'])}",
)
SCORED = ": (x - mean) / (std + {value}), with ddof {correction}"
STANDARDIZED = Change(
    "losses.standardized",
    {"all": f"standardizes it{SCORED}", "rows": f"standardizes each row of it{SCORED}"},
    "uses {0} as it is",
)
ROUGHLY = 1e-3
"""Largest residual (relL2) of a standardization whose epsilon is not known yet."""
MOST_ENTRIES = 2**16
"""Largest number of entries of an array whose formula is recognised."""


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of losses: other formulas; of cross-entropy: other divisors, targets that are not ignored, no class weights,
    other smoothings of labels, a z-loss."""
    if replay.wanted.size <= 1:
        yield from forms(replay.listed)
        yield from standardizations(replay)
    for op in replay.listed if replay.wanted.size <= 1 else ():
        if op.function is functional.kl_div:
            yield op.instead(EXCHANGED, exchanged)
        if op.function not in (functional.cross_entropy, functional.nll_loss):
            continue
        loss = Loss.of(op)
        if loss.given["size_average"] is not None or loss.given["reduce"] is not None:
            continue  # deprecated arguments in place of `reduction`
        if loss.given["reduction"] != "none":
            yield from divisors(op, loss)
        for other in (0, classes_of(loss) - 1) if not loss.valid.all() else ():
            target = torch.where(loss.valid, loss.given["target"], other)
            yield op.instead(NOT_IGNORED, with_named(target=target), other=other, ignored=loss.given["ignore_index"])
        if loss.given["weight"] is not None:
            yield op.instead(UNWEIGHTED, with_named(weight=None))
        if "label_smoothing" in loss.given:
            yield from smoothings(op, loss)
            yield from z_losses(op, loss)


def forms(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations of a formula of one array: a divergence by another estimator, another loss of a margin."""
    real = [
        op for op in ops if is_real(op) and len(op.runs) == 1 and 1 < op.output.numel() <= MOST_ENTRIES and varies(op.output)
    ]
    alike = [(x, total) for x, total in combinations(real, 2) if x.output.shape == total.output.shape]
    for (x, total), (family, known), sign in product(alike, FAMILIES, SIGNED):
        for own in (own for own in [*family][:known] if is_near(sign * family[own](x.output), total.output)):
            others = {other: (formula, None) for other, formula in family.items() if other != own}
            solved = {other: (formula, Free(0.5, sure=True)) for other, formula in SOLVED.items() if family is PREFERENCES}
            for other, (formula, free) in (others | solved).items():
                edits = partial(of_earlier, x, total, sign, formula)
                yield propose(FORM, (total.target, x.target), edits, free, own=own, other=other, sign=sign)


def varies(x: torch.Tensor) -> bool:
    """True if entries differ: at one number, many formulas agree."""
    return not is_near(x, x.flatten()[0].expand_as(x))


def of_earlier(x: Op, total: Op, sign: int, formula: Callable[..., torch.Tensor], *number: float) -> Rewrite:
    """Rewrite in which one operation computes a formula of what an earlier one gave, with a sign."""
    gave: list[torch.Tensor] = []
    return Rewrite({x.place: noting(gave), total.place: lambda f, a, k, n: sign * formula(*number, gave[0])})


def standardizations(replay: Replay) -> Iterator[Proposal]:
    """Mutations that standardize what a loss is given, or what its code makes of that alone, as the advantages of a policy."""
    if (jax := replay.compared.get(replay.place)) is None:
        return
    for target, x, edit in data_of(replay):
        for axis, correction in product((None, -1), (0, 1)) if 2 < x.numel() <= MOST_ENTRIES and varies(x) else ():
            edits, free, how = partial(edit_with, edit, axis, correction), Free(1e-8, sure=True), "rows" if axis else "all"
            is_one = axis is not None and (x.ndim < 2 or x.shape[-1] < 3)
            if not is_one and off(replay.tried(edits(free.start)), jax) <= ROUGHLY:
                yield propose(STANDARDIZED, target, edits, free, how=how, correction=correction)


def data_of(replay: Replay) -> Iterator[tuple[Target, torch.Tensor, Callable[..., Edit]]]:
    """Float inputs of the call, and what operations make of these alone, each with the edit that applies a function to it."""
    found: list[torch.Tensor] = []
    for i, x in enumerate(replay.input_arrays):
        if of_reals(x):
            found.append(x)
            yield Target(f"input {i} of the call"), x, partial(given_input, replay, i)
    matter = {op.place for op in replay.operations}
    for op in (each for each in replay.listed if len(each.runs) == 1 and of_reals(each.output)):
        read = [x for x in op.args if of_reals(x)]
        if read and all(any(same(x, each) for each in found) for x in read):
            found.append(op.output)
            if op.place in matter:
                yield op.target, op.output, lambda change, op=op: op.rewrite(behind(change))


def given_input(replay: Replay, i: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    """Edit in which an input of the call is a function of torch's."""
    return replay.given_inputs({i: change(replay.input_arrays[i])})


def edit_with(edit: Callable[..., Edit], axis: int | None, correction: int, epsilon: float) -> Edit:
    """Edit in which an array is standardized."""
    return edit(partial(standardized, axis, correction, epsilon))


def standardized(axis: int | None, correction: int, epsilon: float, x: torch.Tensor) -> torch.Tensor:
    """Subtract the mean, and divide by the standard deviation + epsilon: over all entries, or along an axis."""
    keep = {"dim": axis, "keepdim": True}
    return (x - x.mean(**keep)) / (x.std(**keep, correction=correction) + epsilon)


def exchanged(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a Kullback-Leibler divergence with its two distributions exchanged."""
    given = named(function, args, kwargs)
    log, target = given["input"], given["target"]
    both = (target, log) if given.get("log_target") else (target.log(), log.exp())
    return function(**given | dict(zip(("input", "target"), both, strict=True)))


def divisors(op: Op, loss: Loss) -> Iterator[Proposal]:
    """Mutations of the divisor of the summed losses: the number of targets, ignored ones counted or not, or their weights."""
    n, count, total = loss.valid.numel(), int(loss.valid.sum()), float(loss.shares.sum())
    valid, weights = ("counted", "counted weights") if count < n else ("targets", "weights")
    is_weighted = loss.given["weight"] is not None and not loss.given["target"].is_floating_point()
    those = {"targets": n, valid: count} | ({weights: total} if is_weighted else {})
    is_mean = loss.given["reduction"] == "mean"
    was = [*those][-1] if is_mean else "nothing"
    for by, divisor in those.items():
        if divisor != (total if is_mean else 1):
            words = {"how": f"{by} for {was}", "n": n, "count": count, "ignored": loss.given["ignore_index"]}
            yield op.instead(DIVIDED, behind(lambda losses, by=divisor: losses.sum() / by, EACH), **words)


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


def classes_of(loss: Loss) -> int:
    """Number of classes."""
    return loss.given["input"].shape[class_axis(loss.given["input"])]


def with_z_loss(counted: Any, weight: float, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute the loss plus `weight` times the mean squared logsumexp of the `counted` targets."""
    logits = named(function, args, kwargs)["input"]
    squares = torch.logsumexp(logits, class_axis(logits)).square()
    return function(*args, **kwargs) + weight * (squares * counted).sum() / counted.sum()
