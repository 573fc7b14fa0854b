"""What may be otherwise in two operations at once: one taken for the other, or done before it; an epsilon behind the root."""

from collections.abc import Iterator
from functools import partial
from itertools import combinations, pairwise, permutations
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Dial, together
from jaxformer.parity.explain.alterations.of_operations import JOINING, instead, is_real, operand
from jaxformer.parity.explain.alterations.operations import Altered, Operation, same
from jaxformer.parity.explain.alterations.rerun import Rerun

MOST_OPERATIONS = 12
"""Outputs of one shape, one of which may be taken for another."""
NEAR_BY = 4
"""So many operations later another one may go on."""
LARGEST_EPSILON = 0.1
ROOTS = ("rsqrt", "sqrt")


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """The plain ones first."""
    operations = rerun.operations
    once = [each for each in operations if len(each.runs) == 1 and is_real(each)]
    yield from epsilons(operations)
    real = [each for each in operations if is_real(each)]
    yield from in_turn(real)
    yield from neither(real)
    yield from taken_for(once)
    yield from exchanged(once)
    yield from exchanged_with_children(rerun, once)
    yield from elsewhere(rerun, once)


def alike(operations: list[Operation]) -> list[list[Operation]]:
    """Those that give arrays of one shape."""
    found: dict[Any, list[Operation]] = {}
    for each in operations:
        found.setdefault(tuple(each.output.shape), []).append(each)
    return [those[:MOST_OPERATIONS] for those in found.values()]


def exchanged(operations: list[Operation]) -> Iterator[Alteration]:
    """What two of them gave."""
    for those in alike(operations):
        for one, other in combinations(those, 2):
            altered = {a.place: partial(output_of, b) for a, b in ((one, other), (other, one))}
            yield Alteration(
                f"computes {one.source} and {other.source}", "the two exchanged", lambda altered=altered: Altered(altered)
            )


def exchanged_with_children(rerun: Rerun, operations: list[Operation]) -> Iterator[Alteration]:
    """What one of them gave and what a child that jax calls too, but for one that reads it."""
    for site, x in rerun.given.items():
        name = str(site).removeprefix(f"{rerun.owner.path}.")
        alike = [each for each in operations if isinstance(x, torch.Tensor) and each.output.shape == x.shape]
        for each in [each for each in alike if not any(same(x, read) for read in each.args)][:MOST_OPERATIONS]:
            yield Alteration(
                f"computes {each.source} and {name}",
                "the two exchanged",
                lambda each=each, site=site, x=x: together(
                    rerun.given_outputs({site: each.output}), each.inside(lambda f, a, k, n: x.clone())
                ),
            )


def taken_for(operations: list[Operation]) -> Iterator[Alteration]:
    """What one operation gave is taken for another's."""
    for those in alike(operations):
        for one, other in permutations(those, 2):
            yield instead(one, f"{other.source} in its place", partial(output_of, other))


def output_of(operation: Operation, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """What it gave."""
    return operation.output.clone()


def in_turn(operations: list[Operation]) -> Iterator[Alteration]:
    """Of two, the second of which goes on with what the first gives, the second one first: f(a b) for f(a) b, too."""
    for i, one in enumerate(operations):
        first, others = next(iter(one.args), None), one.args[1:]
        other = next((each for each in operations[i + 1 : i + 1 + NEAR_BY] if reads(each, one)), None)
        if other is None or not isinstance(first, torch.Tensor) or len(one.runs) != len(other.runs):
            continue
        if len(one.runs) > 1 and any(isinstance(x, torch.Tensor) for x in others):
            continue  # of each run there are others
        if first.shape == one.output.shape == other.output.shape:
            says = f"computes {one.source}, then {other.source}", "the second first"
            altered = {one.place: lambda f, a, k, n: a[0], other.place: partial(followed_by, one)}
            yield Alteration(*says, partial(Altered, altered))


def reads(operation: Operation, one: Operation) -> bool:
    """Whether an operand is what another one gave."""
    return any(same(x, one.output) for x in operation.args[:2])


def followed_by(one: Operation, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """What another operation makes of what is computed."""
    return one.function(function(*args, **kwargs), *one.args[1:], **one.kwargs)


def neither(operations: list[Operation]) -> Iterator[Alteration]:
    """Of two, the second of which goes on with what the first gives, both are left out."""
    for one, other in pairwise(operations):
        x = next(iter(one.args), None)
        if isinstance(x, torch.Tensor) and x.shape == other.output.shape and goes_on(one, other):
            says = f"computes {one.source}, then {other.source}", "neither"
            yield Alteration(*says, partial(Altered, {each.place: lambda f, a, k, n: a[0] for each in (one, other)}))


def goes_on(one: Operation, other: Operation) -> bool:
    """Whether an operation begins with what another one gave."""
    return same(next(iter(other.args), None), one.output)


def elsewhere(rerun: Rerun, operations: list[Operation]) -> Iterator[Alteration]:
    """What one of them does with a second array is done with what another one gives, or at the end: a gate before the norm."""
    for those in alike(operations):
        for one in those:
            tensors = [x for x in one.args[:2] if isinstance(x, torch.Tensor)]
            for i in range(2) if one.name in JOINING and len(tensors) == 2 else ():
                if tensors[i].shape != one.output.shape:
                    continue
                done = partial(done_with, one, i, tensors[1 - i])
                left = {one.place: partial(operand, i)}
                for other in those:
                    if other is not one:
                        says = f"does that behind {other.source}"
                        altered = left | {other.place: lambda f, a, k, n, done=done: done(f(*a, **k))}
                        yield Alteration(f"computes {one.source}", says, partial(Altered, altered))
                if one.output.shape == rerun.wanted.shape:
                    inside = partial(at_the_end, rerun, left, done)
                    yield Alteration(f"computes {one.source}", "does that at the end", inside)


def at_the_end(rerun: Rerun, left: Any, done: Any) -> Any:
    """Inside, something is left out, and something done behind the array."""
    return together(Altered(left), rerun.followed_by(done))


def done_with(operation: Operation, i: int, second: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """What an operation makes of another array for its operand `i`."""
    return operation.function(*((first, second) if i == 0 else (second, first)), *operation.args[2:], **operation.kwargs)


def epsilons(operations: list[Operation]) -> Iterator[Alteration | Dial]:
    """What is added under a root comes behind it, or is the least."""
    for one, root in pairwise(operations):
        if one.name != "add" or root.name not in ROOTS or not torch.equal(root.args[0], one.output):
            continue
        if epsilon := next((each for each in one.args[1:] if type(each) is float and 0 < each < LARGEST_EPSILON), 0.0):
            said = f"epsilon {epsilon:g} under the root"
            yield Dial(said, "epsilon {} behind the root", epsilon, partial(behind_root, one, root), sure=True)
            least = partial(at_least, epsilon)
            yield instead(one, f"takes {epsilon:g} as the least", least)


def behind_root(one: Operation, root: Operation, epsilon: float) -> Altered:
    """Inside, the epsilon is added to the root."""

    def rooted(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
        y = args[0].sqrt() + epsilon
        return 1 / y if root.name == "rsqrt" else y

    return Altered({one.place: lambda f, a, k, n: a[0], root.place: rooted})


def at_least(epsilon: float, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """The larger of both."""
    return args[0].clamp(min=epsilon)
