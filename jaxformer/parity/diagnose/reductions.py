"""Means in torch's code: a loss function's own, `x.mean()`, or written by hand: `(x * mask).sum() / mask.sum()`,
`x[mask].mean()`."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from jaxformer.parity.diagnose.calls import of_reals
from jaxformer.parity.diagnose.computes import Compute, operand, plainly, with_named
from jaxformer.parity.diagnose.functions import MOVES
from jaxformer.parity.diagnose.mutation import Target
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, Place, Rewrite, Run, same

DIVIDING, SUMMING = ("div", "truediv"), ("sum", "mean")
LITTLE = 1e-3
"""Largest number that is added to a divisor against a division by 0."""
LOSSES = ("_loss", "cross_entropy", "_with_logits", "kl_div")
"""Ends of the names of loss functions, which take an argument `reduction`."""
FIRST = 64
EACH = with_named(reduction="none")
"""Computes the loss of each target."""
Reduce = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
"""reduce(kept entries, their shares in the divisor, what is added to the divisor) -> one number"""


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


def class_axis(logits: Any) -> int:
    """Axis of the classes."""
    return min(1, logits.ndim - 1)


@dataclass(frozen=True, eq=False)
class At:
    """One run of an operation."""

    op: Op
    number: int

    @property
    def run(self) -> Run:
        """The run."""
        return self.op.runs[self.number]

    @property
    def target(self) -> Target:
        """Target of mutations of this run."""
        return (replace(self.op, only=self.number) if len(self.op.runs) > 1 else self.op).target


@dataclass(frozen=True)
class Mean:
    """Mean in torch's code."""

    at: At
    """Run that gives the mean, which is one number."""
    read: At
    """Run that reads the entries; `at` itself, or one before."""
    entries: Compute
    """Computes the entries there, before a mask is applied."""
    x: torch.Tensor
    """The entries."""
    kept: torch.Tensor
    """Weight of each entry in torch's mean: mostly 1 or 0, by a mask."""
    shares: torch.Tensor
    """Share of each entry in torch's divisor where it is kept: 1, or the weight of its class."""
    factor: float = 1.0
    """Number by which the mean is multiplied."""
    more: float = 0.0
    """Number that is added to the divisor, against a division by 0."""

    def computes(self, kept: torch.Tensor, reduce: Reduce) -> dict[At, Compute]:
        """Computations of the runs where the mean is another one, of these entries. The replay fails where another mean reads
        the same run in its own way."""
        held: list[torch.Tensor] = []

        def given(x: torch.Tensor) -> torch.Tensor:
            shares = (self.shares * kept).to(x.dtype)
            return self.factor * reduce(x * kept.to(x.dtype), shares, self.more)

        def keep(function: Any, args: Any, kwargs: Any, n: int) -> Any:
            held[:] = [self.entries(function, args, kwargs, n)]
            return function(*args, **kwargs)

        def give(function: Any, args: Any, kwargs: Any, n: int) -> Any:
            return given(self.entries(function, args, kwargs, n) if self.read is self.at else held[0])

        return {self.read: keep, self.at: give} if self.read is not self.at else {self.at: give}


def in_their_runs(computes: Mapping[At, Compute]) -> Rewrite:
    """Rewrite in which single runs of operations compute something else."""
    by_place: dict[Place, dict[int, Compute]] = {}
    for at, compute in computes.items():
        by_place.setdefault(at.op.place, {})[at.number] = compute
    return Rewrite({place: partial(by_number, those) for place, those in by_place.items()})


def by_number(those: Mapping[int, Compute], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute what stands for the run of this number, or else as torch does."""
    return those.get(n, plainly)(function, args, kwargs, n)


def spread(mask: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    """A mask in the shape of the entries; None if it does not fit."""
    if mask.numel() == x.numel():
        return mask.double().reshape(x.shape)
    if mask.shape == x.shape[: mask.ndim]:
        return mask.double().reshape(*mask.shape, *[1] * (x.ndim - mask.ndim)).expand(x.shape)
    return mask.double().expand(x.shape) if mask.ndim == x.ndim and broadcasts(mask, x) else None


def broadcasts(mask: torch.Tensor, x: torch.Tensor) -> bool:
    """True if a mask has the shape of the entries, or 1 in its place."""
    return all(one in (1, many) for one, many in zip(mask.shape, x.shape, strict=True))


def runs_in(replay: Replay) -> list[At]:
    """Runs of a call's operations, in their order."""
    return sorted((At(op, i) for op in replay.listed for i in range(len(op.runs))), key=lambda at: at.run.number)


def row_sums_in(replay: Replay) -> Iterator[tuple[Op, list[torch.Tensor]]]:
    """Sums of masked entries over some of their axes, with the mask of each run, in the shape of the entries."""
    runs = runs_in(replay)
    for op in replay.listed:
        if op.name == "sum" and of_reals(op.output) and op.output.numel() > 1:
            each = [masked(at, at, runs[: runs.index(at)], 1.0).kept for at in runs if at.op is op]
            if all(is_mask(kept) for kept in each):
                yield op, each


def means_in(replay: Replay) -> list[Mean]:
    """Means in a call's code: the runs of operations that give one number of several entries. The sum that a mean divides is
    none by itself."""
    runs, found = runs_in(replay), dict[int, Mean]()
    for i, at in enumerate(runs):
        if of_reals(at.run.output) and at.run.output.numel() == 1 and at.run.args and (inner := summed_in(at, runs[:i])):
            summed, factor, divisor = inner
            of_loss = found.pop(summed.run.number, None) if is_loss(summed) else None
            found.pop(summed.run.number, None)
            mean = replace(of_loss, at=at, factor=factor) if of_loss else masked(at, summed, runs[:i], factor, divisor)
            found[at.run.number] = mean
        elif is_loss(at) and at.run.output.numel() == 1:
            found[at.run.number] = loss_mean(at)
    return list(found.values())


def is_loss(at: At) -> bool:
    """True for a run of one of torch's loss functions."""
    return at.op.name.endswith(LOSSES) and hasattr(functional, at.op.name)


def loss_mean(at: At) -> Mean:
    """The mean that a loss function takes."""
    x = EACH(at.op.function, at.run.args, at.run.kwargs, 0)
    by_class = at.op.name in ("cross_entropy", "nll_loss")
    shares = Loss.of(at.op).shares.reshape(x.shape) if by_class else ones(x)
    return Mean(at, at, EACH, x, ones(x), shares)


def summed_in(at: At, before: list[At]) -> tuple[At, float, torch.Tensor | None] | None:
    """The run that sums the entries of a mean, the factor and the divisor of the sum; None for runs that give no mean."""
    name, x = at.op.name, at.run.args[0]
    if name in DIVIDING and isinstance(x, torch.Tensor):
        summed, factor = without_factors(made_by(x, before), before)
        divisor = at.run.args[1]
        is_sum = summed and (is_loss(summed) or (summed.op.name in SUMMING and has_entries(summed)))
        return (summed, factor, as_tensor(divisor)) if summed and is_sum else None
    if name not in SUMMING or not has_entries(at):
        return None
    rows = made_by(x, before) if name == "mean" else None
    if rows and rows.op.name in DIVIDING and (inner := summed_in(rows, before)) and inner[0].op.name == "sum":
        return inner
    return at, 1.0, None


def has_entries(at: At) -> bool:
    """True for a run that reads several entries which are no mask."""
    x = at.run.args[0]
    return of_reals(x) and x.numel() > 1 and not is_mask(x)


def as_tensor(divisor: Any) -> torch.Tensor:
    """A divisor, which may be a plain number, as a tensor."""
    return torch.as_tensor(divisor, dtype=torch.float64)


def made_by(x: Any, before: list[At]) -> At | None:
    """The last run that gave a tensor, other than by moving or casting entries."""
    for at in reversed(before):
        if same(at.run.output, x):
            if at.op.name not in MOVES or at.op.name == "getitem":
                return at
            x = at.run.args[0]
    return None


def without_factors(at: At | None, before: list[At]) -> tuple[At | None, float]:
    """The run before products with numbers and changes of sign, and the factor that these make."""
    factor = 1.0
    while at and at.op.name in ("mul", "rmul", "neg", *DIVIDING):
        number = -1.0 if at.op.name == "neg" else next((each for each in at.run.args if type(each) in (int, float)), None)
        if number is None:
            break
        factor *= 1 / number if at.op.name in DIVIDING else number
        at = made_by(next(each for each in at.run.args if isinstance(each, torch.Tensor)), before)
    return at, factor


def masked(at: At, summed: At, before: list[At], factor: float, divisor: torch.Tensor | None = None) -> Mean:
    """The mean of the entries that `summed` reads, before a mask is applied to them.

    Where a divisor is nearly the sum of a factor's entries, these are weights, and the rest guards against a division by 0.
    """
    x, read = summed.run.args[0], made_by(summed.run.args[0], before)
    plain = Mean(at, summed, operand(0), x, ones(x), ones(x), factor)
    if read is None:
        return plain
    for entries, mask in unmasked(read):
        inside = entries(read.op.function, read.run.args, read.run.kwargs, read.number)
        if (kept := spread(mask, inside)) is not None:
            total = float(kept.sum())
            more = 0.0 if divisor is None else (float(divisor.sum()) - total) / divisor.numel()
            is_near = abs(more) < LITTLE * abs(total)
            if is_mask(mask) or (divisor is not None and is_near):
                mean = replace(plain, read=read, entries=entries, x=inside, kept=kept, shares=ones(inside))
                return replace(mean, more=more * is_near)
    return plain


def ones(x: torch.Tensor) -> torch.Tensor:
    """1 for every entry, in the memory of one."""
    return torch.ones((), dtype=x.dtype).expand(x.shape)


def is_mask(x: Any) -> bool:
    """True for a tensor of 0 and 1, both of which it has. Most others are told by their first entries."""
    if not isinstance(x, torch.Tensor) or x.numel() < 2:
        return False
    is_binary = all(bool(((part == 0) | (part == 1)).all()) for part in (x.flatten()[:FIRST], x))
    return is_binary and bool((x == 0).any()) and bool((x == 1).any())


def unmasked(at: At) -> Iterator[tuple[Compute, torch.Tensor]]:
    """Entries before an operation that may mask them, and the mask."""
    name, args = at.op.name, at.run.args
    if name in ("mul", "rmul"):
        for i in (0, 1):
            if of_reals(args[i]) and isinstance(args[1 - i], torch.Tensor):
                yield operand(i), args[1 - i].double()
    elif name == "where" and len(args) == 3 and of_reals(args[1]):
        yield operand(1), args[0].double()
    elif name == "masked_fill":
        yield operand(0), 1 - args[1].double()
    elif name == "getitem" and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.bool:
        yield operand(0), args[1].double()
