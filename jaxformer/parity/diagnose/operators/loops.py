"""Mutations of loops: what a step reads of the step before, the end at which a loop over positions begins, and how often a loop
runs whose rounds hand a state on, as layers that share weights."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.calls import safe
from jaxformer.parity.diagnose.computes import Compute, with_operand
from jaxformer.parity.diagnose.functions import is_real
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose
from jaxformer.parity.diagnose.numbers_and_orders import ORDINALS
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, Rewrite, kept, place_of, same
from jaxformer.parity.trace.call_records import arrays_in

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
    steps = [op for op in looped if len({run.module for run in op.runs}) == 1 and is_alike(op)]
    for op in steps:
        tensors = [i for i, x in enumerate(op.args) if isinstance(x, torch.Tensor)]
        for operand, i in zip(ORDINALS, tensors, strict=False):
            if op.args[i].is_floating_point() and varies(op, i):
                yield op.instead(STEP_BEFORE, one_behind(i), operand=operand)
    for op in steps:
        yield from begun_again(op)


def is_alike(op: Op) -> bool:
    """True if all runs have tensors for the same operands: `0 + x` in the first run has its operands exchanged."""
    return len({tuple(isinstance(x, torch.Tensor) for x in run.args) for run in op.runs}) == 1


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
    return function(*args, **kwargs) if n % every else with_operand(i, torch.zeros_like)(function, args, kwargs, n)


def one_behind(i: int) -> Compute:
    """Return a `Compute` that reads operand `i` of the step before; zeros in the first step."""
    last: list[torch.Tensor] = []

    def compute(function: Any, args: Any, kwargs: Any, n: int) -> Any:
        before = last.pop() if n else torch.zeros_like(args[i])
        last[:] = [args[i].clone()]
        return with_operand(i, lambda _: before)(function, args, kwargs, n)

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


MOST_ROUNDS = 8
"""Largest number of rounds of which each smaller number is tried; of more rounds, one less."""
ROUNDS = Change("rounds.number", "runs it {rounds} times", "runs the loop that ends with {0} {was} times")


def rounds(replay: Replay) -> Iterator[Proposal]:
    """Mutations of each loop: fewer rounds, and one more."""
    for loop in rounds_of(replay.listed):
        was, last = len(loop[0].runs), max(loop, key=lambda op: op.runs[-1].number)
        fewer = range(was - 1, 0, -1) if was <= MOST_ROUNDS else (was - 1,)
        for rounds in fewer:
            yield propose(ROUNDS, last.target, partial(ended, loop, rounds), rounds=rounds, was=was)
        yield propose(ROUNDS, last.target, partial(OneMore, loop[0], last), rounds=was + 1, was=was)


def rounds_of(operations: Sequence[Op]) -> Iterator[list[Op]]:
    """Groups of operations that run in rounds: each once a round, where a round reads what the one before made."""
    groups: list[list[Op]] = []
    for op in sorted((op for op in operations if len(op.runs) > 1), key=lambda op: op.runs[0].number):
        alike = (group for group in groups if len(group[0].runs) == len(op.runs) and in_rounds([*group, op]))
        if (group := next(alike, None)) is None:
            groups.append([op])
        else:
            group.append(op)
    return filter(hands_on, groups)


def in_rounds(group: Sequence[Op]) -> bool:
    """True if every operation of a round runs before those of the next round."""
    numbers = [[op.runs[n].number for op in group] for n in range(len(group[0].runs))]
    return all(max(one) < min(other) for one, other in itertools.pairwise(numbers))


def hands_on(group: Sequence[Op]) -> bool:
    """True if the second round reads an array that the first one made, and whose numbers the second one changes."""
    made = [(op, x) for op in group for x in arrays_in(op.runs[0].output) if x.is_floating_point()]
    read = [x for op in group for x in arrays_in((op.runs[1].args, op.runs[1].kwargs))]
    return any(same(x, y) and not same(op.runs[1].output, x) for op, x in made for y in read)


def ended(group: Sequence[Op], rounds: int) -> Rewrite:
    """Rewrite in which the loop ends after some rounds: operations of later ones give what they gave in the last of these."""
    return Rewrite({op.place: at_most(rounds) for op in group})


def at_most(rounds: int) -> Compute:
    """Return a `Compute` that computes in the first `rounds` runs, and gives the last of these outputs in later ones."""
    last: list[Any] = []

    def compute(function: Callable[..., Any], args: Any, kwargs: Any, n: int) -> Any:
        if n < rounds:
            last[:] = [kept(function(*args, **kwargs))]
        return kept(last[0])

    return compute


class OneMore(Rewrite):
    """Context manager: a loop, given by the first and last operation of its rounds, runs once more.

    The calls of the last round are made again, with what it made in place of what it read of the round before. Then the arrays
    of that round take the new numbers.
    """

    def __init__(self, first: Op, last: Op) -> None:
        super().__init__({})
        self.first, self.last, self.rounds = first.place, last.place, len(last.runs)
        self.calls: list[list[tuple[Any, Any, Any, Any]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        place, _ = place_of()
        output = safe(func)(*args, **(kwargs or {}))
        if place == self.first:
            self.calls.append([])
        if self.calls and len(self.calls) <= self.rounds:
            self.calls[-1].append((func, args, kwargs or {}, output))
        if place == self.last and len(self.calls) == self.rounds:
            self.again(*self.calls[-2:])
            self.calls.append([])
        return output

    def again(self, before: Sequence[Any], last: Sequence[Any]) -> None:
        """Run the last round again. ValueError if the two rounds are not the same calls."""
        if [call[0] for call in before] != [call[0] for call in last]:
            raise ValueError("the rounds differ")
        now = {id(x): y for one, other in zip(before, last, strict=True) for x, y in both(one[3], other[3])}
        made: list[tuple[torch.Tensor, torch.Tensor]] = []
        with torch._C.DisableTorchFunction():
            for func, args, kwargs, output in last:
                args, kwargs = put(args, now), put(kwargs, now)
                new = safe(func)(*args, **kwargs)
                made += both(output, new)
                now |= {id(x): y for x, y in both(output, new)}
            for old, new in [(old, new.clone()) for old, new in made]:
                if 0 not in [step for step, size in zip(old.stride(), old.shape, strict=True) if size > 1]:
                    old.copy_(new)


def both(one: Any, other: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of the tensors of two outputs."""
    return [*zip(arrays_in(one), arrays_in(other), strict=True)]


def put(value: Any, now: dict[int, torch.Tensor]) -> Any:
    """Return arguments with other tensors for some, by their ids."""
    if isinstance(value, torch.Tensor):
        return now.get(id(value), value)
    if isinstance(value, dict):
        return {key: put(each, now) for key, each in value.items()}
    return type(value)(put(each, now) for each in value) if type(value) in (tuple, list) else value
