"""Whole numbers that are taken for others: positions, tokens, and the rows of a table of distances."""

import math
from collections.abc import Iterator

import torch

Others = Iterator[tuple[str, torch.Tensor]]
"""In words, and the other ones."""
MOST_TOKENS, FEW = 64, 4
MOST_DISTANCES = 32


def other_ids(ids: torch.Tensor, rows: int) -> Others:
    """Of rows of a table of so many, the plain ones first."""
    for says, other in every(ids, rows):
        if other.shape == ids.shape and other.min() >= 0 and other.max() < rows and not torch.equal(other, ids):
            yield says, other


def every(ids: torch.Tensor, rows: int) -> Others:
    """Those too that have no row."""
    length = math.isqrt(ids.numel())
    if ids.ndim == 1 and length**2 == len(ids) > FEW and not steps(ids, 0):  # of pairs, as one list
        for says, other in every(ids.reshape(length, length), rows):
            yield says, other.reshape(-1)
        return
    yield "0 everywhere", 0 * ids
    yield "1 everywhere", 0 * ids + 1
    for more in (1, -1, 2, -2):
        yield f"{more:+d}", ids + more
        yield f"{more:+d}, clipped to those that there are", (ids + more).clamp(0, rows - 1)
    if ids.max() == 1:
        yield "0 for 1 and 1 for 0", 1 - ids
    yield "that begin with 0", ids - ids.min()
    if ids.ndim > 1 and ids.shape[-1] == ids.shape[-2] > 1:
        yield from other_pairs(ids)
    yield from other_positions(ids)
    yield from on_grids(ids, rows)
    if ids.max() <= MOST_DISTANCES:
        for most in range(1, int(ids.max())):
            yield f"{most} at most", ids.clamp(max=most)
    yield from other_tokens(ids, rows)


def other_positions(ids: torch.Tensor) -> Others:
    """Along the last axis that is longer than 1."""
    axis = next((axis for axis in range(ids.ndim - 1, -1, -1) if ids.shape[axis] > 1), None)
    if axis is None:
        return
    length = ids.shape[axis]
    plain = torch.arange(length, dtype=ids.dtype).reshape(-1, *[1] * (ids.ndim - 1 - axis)).expand_as(ids)
    if steps(ids, axis):
        yield "that count from 0 in every row", plain
        yield "that end at the last", plain + (int(ids.max()) + 1 - length)
        for says, each in (("", ids),) if torch.equal(plain, ids) else (("", plain), (" of torch's", ids)):
            for n in range(2, length):
                yield f"that begin again after every {n}{says}", each % n
            for n in range(2, FEW + 1):
                yield f"{n} times each{says}", each.div(n, rounding_mode="floor")
    if axis:
        yield "of the first row", ids.narrow(0, 0, 1).expand_as(ids)
    yield "in the other order", ids.flip(axis)
    if steps(ids, axis):
        for n in range(1, length - 1):
            yield f"{n} at most", ids.clamp(max=n)


def steps(ids: torch.Tensor, axis: int) -> bool:
    """Whether most of them are the one before and 1 more."""
    return bool((ids.diff(dim=axis) == 1).double().mean() > 0.5)


def other_pairs(ids: torch.Tensor) -> Others:
    """Of two positions each: exchanged, or the positions of a grid in the order of its columns."""
    length = ids.shape[-1]
    yield "with its last two axes exchanged", ids.transpose(-1, -2)
    for height in divisors(length):
        order = torch.arange(length).reshape(height, -1).T.reshape(-1)
        yield f"of {height} x {length // height} positions, column by column", ids[..., order, :][..., order]


def on_grids(ids: torch.Tensor, rows: int) -> Others:
    """Of a table of as many rows as a grid has places; 1 x n is a line."""
    if ids.ndim < 2:
        return
    yield "from the table's other end", rows - 1 - ids
    for height in divisors(rows):
        width = rows // height
        y, x, grid = ids // width, ids % width, f"of a grid of {height} x {width}"
        yield f"{grid}, its axes exchanged", x * height + y
        yield f"{grid}, its first axis from the other end", (height - 1 - y) * width + x
        yield f"{grid}, its second axis from the other end", y * width + width - 1 - x


def divisors(n: int) -> list[int]:
    """Without 1 and n."""
    small = [each for each in range(2, math.isqrt(n) + 1) if n % each == 0]
    return sorted({*small, *(n // each for each in small)})


def other_tokens(ids: torch.Tensor, rows: int) -> Others:
    """Another one where each row begins, or for one that stands there; moved along a row."""
    if ids.ndim != 2 or ids.shape[1] < 2:
        return
    few = [*range(min(rows, MOST_TOKENS)), rows - 1]
    first = ids[:, :1]
    if (first == first[0]).all():
        for other in few:
            yield f"{other} for {int(first[0])} at the beginning", torch.cat([0 * first + other, ids[:, 1:]], 1)
    yield "one later, the last of each row first", ids.roll(1, 1)
    yield "one earlier, the first of each row last", ids.roll(-1, 1)
    for other in few:
        yield f"one later, {other} at the beginning", torch.cat([0 * first + other, ids[:, :-1]], 1)
    for token in {*range(FEW)} & {*ids.flatten().tolist()}:
        for other in few:
            yield f"{other} for {token}", torch.where(ids == token, other, ids)
