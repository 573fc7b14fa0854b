"""Mutations of how often a loop runs whose rounds hand a state on: layers that share weights, steps of an iteration."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.calls import safe
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Compute, Op, Rewrite, kept, place_of, same
from jaxformer.parity.trace.call_records import arrays_in

MOST_ROUNDS = 8
"""Largest number of rounds of which each smaller number is tried; of more rounds, one less."""
ROUNDS = Change("rounds.number", "runs it {rounds} times", "runs the loop that ends with {0} {was} times")


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of each loop: fewer rounds, and one more."""
    for loop in loops(replay.listed):
        was, last = len(loop[0].runs), max(loop, key=lambda op: op.runs[-1].number)
        fewer = range(was - 1, 0, -1) if was <= MOST_ROUNDS else (was - 1,)
        for rounds in fewer:
            yield propose(ROUNDS, last.target, partial(ended, loop, rounds), rounds=rounds, was=was)
        yield propose(ROUNDS, last.target, partial(OneMore, loop[0], last), rounds=was + 1, was=was)


def loops(operations: Sequence[Op]) -> Iterator[list[Op]]:
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
