"""Mutations of loops over positions: what a step reads of the step before, and at which end the loop begins."""

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.functions import is_real
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose
from jaxformer.parity.diagnose.numbers_and_orders import ORDINALS
from jaxformer.parity.diagnose.operators.arguments import with_operand
from jaxformer.parity.diagnose.trace import Compute, Op, Rewrite

FEWEST = 3
"""Least number of steps of a loop."""
JOINED = ("stack", "cat", "concat")
BACKWARDS = Change("loops.backwards", "from the last to the first", torch="takes its {steps} steps from the first to the last")
STEP_BEFORE = Change("loops.step_before", "reads its {operand} operand one step late (of the step before)", reroutes=True)
CLEARED = Change(
    "loops.cleared",
    "sets its {operand} operand to 0 after every {every} of {steps} steps: no state is handed on",
)


def proposals(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of loops, the plain ones first. An operation that several modules run in turn is no step of a loop: they hand
    no state on."""
    yield from backwards(operations)
    looped = [op for op in operations if len(op.runs) >= FEWEST and is_real(op)]
    steps = [op for op in looped if len({run.module for run in op.runs}) == 1]
    for op in steps:
        tensors = [i for i, x in enumerate(op.args) if isinstance(x, torch.Tensor)]
        for operand, i in zip(ORDINALS, tensors, strict=False):
            if op.args[i].is_floating_point() and varies(op, i):
                yield op.instead(STEP_BEFORE, one_behind(i), operand=operand)
    for op in steps:
        yield from begun_again(op)


def begun_again(op: Op) -> Iterator[Proposal]:
    """Mutations that reset a state, 0 at first, after every few steps, as in code that hands no state from chunk to chunk."""
    steps = len(op.runs)
    for i, (operand, x) in enumerate(zip(ORDINALS, op.args, strict=False)):
        if isinstance(x, torch.Tensor) and x.ndim and not x.any() and varies(op, i):
            for every in range(2, steps):
                yield op.instead(CLEARED, partial(cleared, i, every), operand=operand, every=every, steps=steps)


def varies(op: Op, i: int) -> bool:
    """True if operand `i` has other numbers in a later run than in the first."""
    x, others = op.args[i], [run.args[i] for run in op.runs if len(run.args) > i]
    return any(isinstance(other, torch.Tensor) and other.shape == x.shape and not torch.equal(other, x) for other in others)


def cleared(i: int, every: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute the function with operand `i` set to 0 in every `every`-th step."""
    return function(*args, **kwargs) if n % every else with_operand(i, torch.zeros_like, function, args, kwargs, n)


def one_behind(i: int) -> Compute:
    """Return a `Compute` that reads operand `i` of the step before; zeros in the first step."""
    last: list[torch.Tensor] = []

    def compute(function: Any, args: Any, kwargs: Any, n: int) -> Any:
        before = last.pop() if n else torch.zeros_like(args[i])
        last[:] = [args[i].clone()]
        return with_operand(i, lambda _: before, function, args, kwargs, n)

    return compute


def backwards(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations in which a loop runs from the last position to the first. Each step reads the entry at its number from the
    end, and the joined outputs of all steps are reversed."""
    read: dict[int, dict[Any, Compute]] = defaultdict(dict)
    for op in operations:
        if is_counted(op) and len(op.runs) >= FEWEST:
            read[len(op.runs)][op.place] = partial(from_end, len(op.runs))
        elif op.name == "unbind" and len(op.output) >= FEWEST:
            read[len(op.output)][op.place] = lambda f, a, k, n: f(*a, **k)[::-1]
    for steps, those in read.items():
        joins = [op for op in operations if op.name in JOINED and len(op.runs) == 1 and len(op.args[0]) == steps]
        joined = {op.place: lambda f, a, k, n: f([*a[0]][::-1], *a[1:], **k) for op in joins}
        yield propose(BACKWARDS, (), partial(Rewrite, those | joined), steps=steps)


def is_counted(op: Op) -> bool:
    """True if step n of the operation reads entry n."""
    read = [[each for each in indices(run.args[1]) if type(each) is int] for run in op.runs] if op.name == "getitem" else []
    return bool(read) and read == [[n] for n in range(len(read))]


def indices(index: Any) -> tuple[Any, ...]:
    """Entries of an index, as a tuple."""
    return index if isinstance(index, tuple) else (index,)


def from_end(steps: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Read entry `steps - 1 - n` in place of entry n."""
    return function(args[0], tuple(steps - 1 - each if type(each) is int else each for each in indices(args[1])), **kwargs)
