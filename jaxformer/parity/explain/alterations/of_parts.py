"""What may be otherwise in which entries an operation takes: another window, packed blocks in another order, copies side by
side or one behind the other; an operand that is left out of a product of several."""

import itertools
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Altered, Operation

MOST_WINDOWS = 8
"""Of one size, other than torch's."""
MOST_BLOCKS = 4


def windows(operation: Operation) -> Iterator[Alteration]:
    """As many entries along an axis, from another one on, as what is left of a padded convolution."""
    x, y = operation.args[0], operation.output
    if operation.name not in ("getitem", "narrow") or not isinstance(x, torch.Tensor) or x.ndim != y.ndim:
        return
    (axis,) = [axis for axis in range(x.ndim) if x.shape[axis] != y.shape[axis]]
    size, most = y.shape[axis], x.shape[axis] - y.shape[axis]
    for start in range(most + 1) if most <= MOST_WINDOWS else ():
        says = f"takes entries {start} to {start + size - 1} of axis {axis}"
        yield instead(operation, says, lambda f, a, k, n, start=start: a[0].narrow(axis, start, size))


def blocks(operation: Operation) -> Iterator[Alteration]:
    """Blocks of different sizes, packed in another order."""
    sizes = [*operation.args[1]] if operation.name in ("split", "split_with_sizes") else []
    if len({*sizes}) < 2 or len(sizes) > MOST_BLOCKS:
        return
    for order in [*itertools.permutations(range(len(sizes)))][1:]:
        says = f"has its parts packed in the order {', '.join(map(str, order))}"
        yield instead(operation, says, partial(packed, sizes, order))
    for i, (one, other) in enumerate(pairwise(sizes)):
        size, first = min(one, other), sum(sizes[:i])
        second = first + one
        for mine, its in {(first, second), (second - size, second), (first, second + other - size)} if one != other else ():
            says = f"has entries {mine} to {mine + size - 1} and {its} to {its + size - 1} exchanged"
            yield instead(operation, says, partial(exchanged, (mine, its, size)))


def exchanged(places: tuple[int, int, int], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """What is split, with entries at two places exchanged, so many of each."""
    mine, its, size = places
    axis = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    x = args[0].movedim(axis, 0)
    parts = x[:mine], x[its : its + size], x[mine + size : its], x[mine : mine + size], x[its + size :]
    return function(torch.cat(parts).movedim(0, axis), *args[1:], **kwargs)


def packed(sizes: list[int], order: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The parts in torch's order, where they are packed in another one."""
    found = function(args[0], [sizes[i] for i in order], *args[2:], **kwargs)
    return tuple(found[order.index(i)] for i in range(len(sizes)))


def copies(operations: list[Operation]) -> Iterator[Alteration]:
    """Each entry several times, or all of them: in one operation, and wherever it is done."""
    for says, names, compute in (
        ("repeats the whole, not each", ("repeat_interleave",), whole_repeated),
        ("repeats each, not the whole", ("repeat", "tile"), each_repeated),
    ):
        those = [each for each in operations if each.name in names]
        for each in those:
            yield instead(each, says, compute)
        if len(those) > 1:
            altered = {each.place: compute for each in those}
            yield Alteration(f"computes {those[0].source} and the like", says, partial(Altered, altered))


def whole_repeated(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """a b a b for a a b b"""
    y = function(*args, **kwargs)
    (axis,) = [axis for axis in range(y.ndim) if y.shape[axis] != args[0].shape[axis]]
    return torch.cat([args[0]] * (y.shape[axis] // args[0].shape[axis]), axis)


def each_repeated(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """a a b b for a b a b"""
    y = args[0]
    for axis, size in enumerate(function(*args, **kwargs).shape):
        y = y.repeat_interleave(size // y.shape[axis], axis)
    return y


def factors(operation: Operation) -> Iterator[Alteration]:
    """Of a product of several, all but one."""
    several = operation.args[1:] if operation.name == "einsum" else ()
    for i, x in enumerate(several, 1):
        says = f"has no {('first', 'second', 'third')[i - 1]} operand there" if i < 4 else f"has no operand {i} there"
        other = partial(torch.ones_like, x)
        yield instead(operation, says, lambda f, a, k, n, i=i, other=other: f(*a[:i], other(), *a[i + 1 :], **k))


KINDS = (windows, blocks, factors)
