"""Mutations of every place where torch's code calls the same function: a port has one helper for all of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, takewhile
from typing import Any

from jaxformer.parity.diagnose.mutation import Mutation, Proposal, Target
from jaxformer.parity.diagnose.operators import arguments, axes
from jaxformer.parity.diagnose.operators.functions import ACTIVATIONS, NORMS
from jaxformer.parity.diagnose.operators.operations import replacements
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, Rewrite

PLACES = ", in {places} places"
"""Behind what torch does."""
MOST_PLACES = 6
"""Of which all but one may have another number."""
TORCHS = ("at", "was")
"""Arguments that say what torch has there."""


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of activations, norms and reductions, where they stand in several places."""
    found: dict[str, list[Op]] = {}
    for op in replay.operations:
        if op.name in {*ACTIVATIONS, *NORMS, *axes.REDUCING}:
            found.setdefault(op.name, []).append(op)
    for name, ops in found.items():
        if len(ops) > 1:
            alike = [*takewhile(are_alike, zip(*map(of_one, ops), strict=False))]
            yield from map(partial(grouped, name), alike)
            for several in alike if 2 < len(ops) <= MOST_PLACES else ():
                if several[0].free:
                    yield from (grouped(name, some) for some in combinations(several, len(ops) - 1))


def of_one(op: Op) -> Iterator[Proposal]:
    """Mutations of one of the places."""
    yield from replacements(op)
    numbers = arguments.proposals(op)
    if op.name not in axes.REDUCING:
        yield from (each for each in numbers if each.free)
        return
    yield from numbers
    for kind in (axes.reductions, axes.rolls, axes.orders):
        yield from kind(op)


def are_alike(several: Sequence[Proposal]) -> bool:
    """True if all places are changed in one way, whatever numbers torch has there."""
    return len({(each.mutation.change, *(arg for arg in each.mutation.args if arg[0] not in TORCHS)) for each in several}) == 1


def grouped(name: str, several: Sequence[Proposal]) -> Proposal:
    """One mutation of all places, where torch has the number that is solved for, or computes a function of this name."""
    first, every = several[0], [each.mutation for each in several]
    change, args = every[0].change, (*every[0].args, ("places", len(several)))
    everywhere = replace(change, name=f"everywhere.{change.name}", torch=f"{change.torch}{PLACES}")
    named = () if first.free else (Target(name),)
    targets = (*named, *(target for each in every for target in each.targets))
    near = tuple(partial(merged, edits) for edits in zip(*(each.near for each in several), strict=False))
    return Proposal(Mutation(everywhere, targets, args), partial(merged, [each.edits for each in several]), first.free, near)


def merged(several: Sequence[Callable[..., Any]], *number: float) -> Rewrite:
    """Inside, all places are rewritten at once: one mode inside of another would not know its place."""
    return Rewrite({place: compute for each in several for place, compute in each(*number).altered.items()})
