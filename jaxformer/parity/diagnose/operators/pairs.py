"""Mutations of several operations at once: two that are exchanged or left out, and every place that calls the same function."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, pairwise, permutations, product, takewhile
from typing import Any

import torch

from jaxformer.parity.diagnose.computes import JOINING, Compute, behind, gives, of_first, operand, with_operand
from jaxformer.parity.diagnose.functions import ACTIVATIONS, NORMS, is_real
from jaxformer.parity.diagnose.modules import name_of
from jaxformer.parity.diagnose.mutation import (
    REPEATS,
    Change,
    Edit,
    Edits,
    Free,
    Mutation,
    Proposal,
    Target,
    grouped,
    propose,
    together,
)
from jaxformer.parity.diagnose.numbers_and_orders import ORDINALS
from jaxformer.parity.diagnose.operators import arguments, axes, permute
from jaxformer.parity.diagnose.operators.operations import replacements
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, Place, Rewrite, at_once, same
from jaxformer.parity.trace.call_sites import Site

MOST_OPERATIONS = 12
"""Largest number of outputs of one shape that are taken for one another."""
NEAR_BY = 4
"""Number of following operations among which the reader of an output is looked for."""
LARGEST_EPSILON = 0.1
ROOTS: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "sqrt": lambda x, epsilon: x.sqrt() + epsilon,
    "rsqrt": lambda x, epsilon: 1 / (x.sqrt() + epsilon),
}
"""Roots with epsilon added after them."""

EPSILON = Change("pairs.epsilon", "adds {value} after the root: sqrt(x) + eps", "adds epsilon {epsilon:g} under the root")
LEAST = Change("pairs.least", "takes at least {epsilon:g} (`maximum`) in place of adding it")
TURNED = Change("pairs.turned", "does the second first", "computes {0}, then {1}", subjects=2)
NEITHER = Change("pairs.neither", "does neither", "computes {0}, then {1}", subjects=2)
BOTH_LEFT_OUT = Change(
    "pairs.both_left_out",
    {
        "all": "leaves both out",
        "first": "leaves out the second operand of each",
        "second": "leaves out the first operand of each",
    },
    "computes {0} and {1}",
    subjects=2,
)
TAKEN_FOR = Change("pairs.taken_for", "uses {1} in its place", reroutes=True)
LATER_FOR = Change("pairs.later_taken_for", "uses {1} in its place", cost=REPEATS, reroutes=True)
"""Change in which a later array, which may be made of the one that it stands for, is used: then that is done twice."""
EXCHANGED = Change(
    "pairs.exchanged",
    "exchanges the two",
    "computes {0} and {1}",
    subjects=2,
    reroutes=True,
)
BEHIND = Change("pairs.behind", "does that after {1} instead", cost=REPEATS)
ONE_PART = Change("pairs.one_part", "does it to the second operand of {1} alone, before the sum")


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of two operations, the plain ones first."""
    real = [op for op in replay.operations if is_real(op)]
    once = [op for op in real if len(op.runs) == 1]
    groups = [those[:MOST_OPERATIONS] for those in grouped(once, lambda op: tuple(op.output.shape)).values()]
    yield from epsilons(replay.operations)
    yield from turned(real)
    yield from neither(real)
    yield from both_left_out(once)
    for one, other in (pair for those in groups for pair in permutations(those, 2)):
        change = TAKEN_FOR if other.run.number < one.run.number else LATER_FOR
        yield both(change, one, other, {one.place: gives(other.output)})
    for one, other in (pair for those in groups for pair in combinations(those, 2)):
        yield both(EXCHANGED, one, other, {one.place: gives(other.output), other.place: gives(one.output)})
    yield from exchanged_with_children(replay, once)
    for those in groups:
        yield from elsewhere(those)


def both(change: Change, one: Op, other: Op, computes: Mapping[Place, Compute], **args: Any) -> Proposal:
    """Propose a mutation of two operations."""
    return propose(change, (one.target, other.target), partial(Rewrite, computes), **args)


def done(op: Op, i: int, x: torch.Tensor) -> torch.Tensor:
    """Compute an operation with another array for operand `i`."""
    return op.function(*op.args[:i], x, *op.args[i + 1 :], **op.kwargs)


def begins_with(op: Op, one: Op) -> bool:
    """True if the first operand of `op` is the output of `one`."""
    return same(next(iter(op.args), None), one.output)


def epsilons(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations of an epsilon that is added under a root: added after the root, or taken as a lower bound."""
    sums = [(one, root) for one, root in pairwise(ops) if one.name == "add" and root.name in ROOTS and begins_with(root, one)]
    for one, root in sums:
        numbers = [each for each in one.args[1:] if type(each) is float and 0 < each < LARGEST_EPSILON]
        for epsilon in numbers[:1]:
            free = Free(epsilon, sure=True)
            yield propose(EPSILON, (one.target, root.target), partial(behind_root, one, root), free, epsilon=epsilon)
            yield one.instead(LEAST, lambda f, a, k, n, least=epsilon: a[0].clamp(min=least), epsilon=epsilon)


def behind_root(one: Op, root: Op, epsilon: float) -> Rewrite:
    """Rewrite in which epsilon is added after the root."""
    return Rewrite({one.place: operand(0), root.place: of_first(lambda x: ROOTS[root.name](x, epsilon))})


def turned(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations that apply an operation before the one whose output it reads, as f(a b) for f(a) b."""
    for i, one in enumerate(ops):
        first, following = next(iter(one.args), None), ops[i + 1 : i + 1 + NEAR_BY]
        other = next((op for op in following if any(same(x, one.output) for x in op.args[:2])), None)
        if other is None or not isinstance(first, torch.Tensor) or len(one.runs) != len(other.runs):
            continue
        if len(one.runs) > 1 and any(isinstance(x, torch.Tensor) for x in one.args[1:]):
            continue  # each run reads other tensors
        by_entry = not any(isinstance(x, torch.Tensor) for x in one.args[1:])  # the second may have another shape
        if first.shape == one.output.shape and (by_entry or first.shape == other.output.shape):
            yield both(TURNED, one, other, {one.place: operand(0), other.place: behind(partial(done, one, 0))})


def neither(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations that leave out an operation and the next one that reads its output first."""
    for i, one in enumerate(ops):
        x, following = next(iter(one.args), None), ops[i + 1 : i + 1 + NEAR_BY]
        other = next((op for op in following if begins_with(op, one)), None)
        if other and isinstance(x, torch.Tensor) and x.shape == other.output.shape:
            yield both(NEITHER, one, other, {one.place: operand(0), other.place: operand(0)})


def both_left_out(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations that leave out two operations alike, of one line or of the next, or one operand of each: what code does to two
    branches."""
    for those in grouped(ops, lambda op: (op.position[0], op.name, op.output.shape)).values():
        for one, other in combinations(those[:MOST_OPERATIONS], 2):
            if other.position[1] - one.position[1] in (0, 1):
                for how, i in alike_operands(one, other).items():
                    yield both(BOTH_LEFT_OUT, one, other, dict.fromkeys((one.place, other.place), operand(i)), how=how)


def alike_operands(one: Op, other: Op) -> dict[str, int]:
    """Positions of the tensors among the arguments of both operations that have the output's shape, at most two, by which of
    them it is: 'first', 'second', or 'all' for the only one."""
    parts = [[i for i, x in enumerate(op.args) if isinstance(x, torch.Tensor)] for op in (one, other)]
    ordinals = {1: ("all",), 2: ORDINALS[:2]}.get(len(parts[0]), ())
    found = dict(zip(ordinals, parts[0], strict=False)) if parts[0] == parts[1] else {}
    return {how: i for how, i in found.items() if one.args[i].shape == other.args[i].shape == one.output.shape}


def exchanged_with_children(replay: Replay, ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations that exchange the outputs of an operation and of a child that jax calls too, unless the operation reads the
    child's."""
    for site, x in replay.given.items():
        alike = [op for op in ops if isinstance(x, torch.Tensor) and op.output.shape == x.shape]
        for op in [op for op in alike if not any(same(x, read) for read in op.args)][:MOST_OPERATIONS]:
            yield propose(EXCHANGED, (op.target, name_of(replay, site)), partial(exchanged_with, replay, site, x, op))


def exchanged_with(replay: Replay, site: Site, x: torch.Tensor, op: Op) -> Edit:
    """Edit that exchanges the outputs of a child and of an operation."""
    return together(replay.given_outputs({site: op.output}), op.rewrite(gives(x)))


def elsewhere(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations that apply an elementwise operation with a second array after another operation instead: a gate on the other
    side of a norm."""
    for one in (op for op in ops if op.name in JOINING and all(isinstance(x, torch.Tensor) for x in op.args[:2])):
        for i in (i for i, x in enumerate(one.args[:2]) if x.shape == one.output.shape):
            left = {one.place: operand(i)}
            for other in (op for op in ops if op is not one):
                yield both(BEHIND, one, other, left | {other.place: behind(partial(done, one, i))}, kept=i)


def before_sums(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations of an operation on a sum: it is applied to the sum's second operand alone, before the first is added."""
    once = [op for op in ops if len(op.runs) == 1]
    sums = [op for op in once if op.name == "add" and [isinstance(x, torch.Tensor) for x in op.args[:2]] == [True, True]]
    for total, op in product(sums, once):
        goes_on = is_real(op) and begins_with(op, total) and op.args[0] is not total.args[0]
        if goes_on and total.args[1].shape == op.output.shape:
            first, second = total.args[:2]
            alone = with_operand(0, lambda _, second=second: second)
            edits = partial(op.rewrite, behind(partial(torch.add, first), alone))  # a + f(b) for f(a + b)
            yield propose(ONE_PART, (op.target, total.target), edits)


PLACES = ", in {places} places"
"""Suffix of the words for what torch does."""
MOST_PLACES, MOST_LISTED = 6, 3
"""Largest number of places for which all but one are mutated together, and of places that are listed."""
BRANCHED = {"normalize", "cosine_similarity", "cross_entropy", "binary_cross_entropy_with_logits", "clamp", "clip"}
"""Functions that code calls once for each of two branches, or of two losses."""
TORCHS = ("at", "was")
"""Arguments of a mutation that hold torch's values."""


def everywhere(replay: Replay) -> Iterator[Proposal]:
    """Mutations of an activation, a norm, a reduction, a repetition or one of `BRANCHED` in all places that call it; where a
    number is solved for, in all but one too."""
    some = (op for op in replay.operations if op.name in {*ACTIVATIONS, *NORMS, *axes.REDUCING, *permute.REPEATING, *BRANCHED})
    for name, ops in grouped(some, lambda op: op.name).items():
        if len(ops) > 1:
            alike = [*takewhile(are_alike, zip(*map(of_one, ops), strict=False))]
            yield from map(partial(in_all, name), alike)
            for several in alike if 2 < len(ops) <= MOST_PLACES else ():
                if several[0].free:
                    yield from (in_all(name, some) for some in combinations(several, len(ops) - 1))


def of_one(op: Op) -> Iterator[Proposal]:
    """Mutations of one of the places."""
    numbers, reduces = arguments.proposals(op), op.name in {*axes.REDUCING, *BRANCHED}
    yield from chain(replacements(op), permute.repeats(op), (each for each in numbers if each.free or reduces))
    yield from chain(axes.reductions(op), axes.orders(op))


def are_alike(several: Sequence[Proposal]) -> bool:
    """True if all places are mutated in the same way, whatever numbers torch has there."""
    return len({(each.mutation.change, *(arg for arg in each.mutation.args if arg[0] not in TORCHS)) for each in several}) == 1


def in_all(name: str, several: Sequence[Proposal]) -> Proposal:
    """Merge mutations of several places into one. Its first target is the function's name, unless a number is solved for."""
    if len(several) == 1:
        return several[0]
    first, every = several[0], [each.mutation for each in several]
    change, args = every[0].change, (*every[0].args, ("places", len(several)))
    named = () if first.free else (Target(name),)
    listed = ", ".join(f"{{{i}}}" for i in range(len(named), len(named) + len(several)))
    where = f"{PLACES} ({listed})" if named and len(several) <= MOST_LISTED else PLACES
    everywhere = replace(change, name=f"everywhere.{change.name}", torch=f"{change.torch}{where}")
    targets = (*named, *(target for each in every for target in each.targets))
    near = tuple(partial(merged, edits) for edits in zip(*(each.near for each in several), strict=False))
    edits = partial(merged, [each.edits for each in several])
    mutation = Mutation(everywhere, targets, args)
    return Proposal(mutation, edits, first.free, near, parts=tuple(several), merge=partial(in_all, name))


def merged(several: Sequence[Edits], *number: float) -> Rewrite:
    """Rewrite all places at once."""
    return at_once(each(*number) for each in several)
