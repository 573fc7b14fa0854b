"""Recognition of tensors by their values: which ones hold the same numbers, and in which order of axes."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from typing import NamedTuple, TypeVar

import numpy as np

from jaxformer.convert.axes import Axes, Layout
from jaxformer.convert.host import UNSIGNED, equal_numbers

Key = TypeVar("Key")
CHANNELS = 2
"""Number of axes of a torch kernel that come before its spatial axes."""
SHOWN = 4
"""Number of rows of a head that a message lists to show their order."""
GLANCE = 16
"""Number of elements that are compared before all elements are."""


class Fingerprint(NamedTuple):
    """Fingerprint of a tensor: equal for tensors of one type that hold the same numbers, bit for bit, in any order."""

    dtype: str
    size: int
    digest: tuple[int, ...]
    constant: bool
    """True if all numbers are equal, so that they do not tell where the tensor belongs."""


def fingerprint(array: np.ndarray) -> Fingerprint:
    """Return an array's fingerprint, the same in any order of its numbers: -0.0 differs from 0.0, and a NaN equals itself.

    It is the sum, modulo 2^64, of a hash of each number's bits, and the sum of the squares of these.
    """
    flat, total = bits(array.ravel("K")), np.zeros(2, np.uint64)
    for start in range(0, flat.size, CHUNK):
        hashed = flat[start : start + CHUNK].astype(np.uint64) + np.uint64(1)
        for factor, shift in HASHES:
            hashed *= np.uint64(factor)
            hashed ^= hashed >> np.uint64(shift)
        total += hashed.sum(), (hashed * hashed).sum()
    constant = not flat.size or bool((flat == flat[0]).all())
    return Fingerprint(array.dtype.name, array.size, tuple(map(int, total)), constant)


CHUNK = 2**16
"""Numbers that are hashed together: they stay in a cache."""
HASHES = ((0x9E3779B97F4A7C15, 32), (0xD6E8FEB86659FD93, 29))
"""Odd factor and shift of each round of the hash."""


def bits(array: np.ndarray) -> np.ndarray:
    """View an array's memory as unsigned integers."""
    return np.ascontiguousarray(array).view(UNSIGNED[array.itemsize]).reshape(array.shape)


def inside(whole: np.ndarray, parts: Mapping[Key, np.ndarray]) -> list[Key]:
    """Return the keys of arrays that may be parts of `whole`: smaller, of its type, and with first numbers that all occur in
    it.

    Returns early, with no keys, if no part begins with the first number of `whole`: whatever the order of axes, a corner stays
    a corner.
    """
    smaller = {key: bits(part.flat[:GLANCE]) for key, part in parts.items() if 0 < part.size < whole.size}
    smaller = {key: first for key, first in smaller.items() if first.dtype == bits(whole.flat[:1]).dtype}
    if not any(first[0] == bits(whole.flat[:1])[0] for first in smaller.values()):
        return []
    held = np.unique(bits(whole))
    return [key for key, first in smaller.items() if (held.take(np.searchsorted(held, first), mode="clip") == first).all()]


def find_layout(theirs: np.ndarray, ours: np.ndarray) -> Layout | None:
    """Return the layout by which torch's tensor becomes JAX's; None if no order of axes does so, or if different orders do."""
    found = next(filter(None, (list(dict.fromkeys(find(bits(theirs), bits(ours)))) for find in LAYOUTS)), [])
    numbers = np.arange(theirs.size).reshape(theirs.shape) if len(found) > 1 else None
    if not found or (numbers is not None and len({axes.to_jax(numbers).tobytes() for axes in found}) > 1):
        return None
    if found[0].backwards:
        return found[0]
    if theirs.shape == ours.shape and any(_in_order(axes.order) for axes in found):
        return "same"
    turned = any(axes.order == (1, 0) and axes.split == theirs.shape for axes in found)
    return "transposed" if turned and ours.shape == theirs.shape[::-1] else found[0]


def in_usual_order(axes: Axes) -> Axes | None:
    """Return the layout with its inner axes in torch's usual order, not reversed; None if sizes do not allow that.

    Inner axes are the spatial axes of a kernel, and the parts of a split axis, as heads and their width.
    """
    if rows_of_heads(axes):
        exchanged = {1: 2, 2: 1}
        return replace(axes, order=tuple(exchanged.get(piece, piece) for piece in axes.order))
    ends, at, owner = np.cumprod(axes.torch), 1, []
    for size in axes.split:
        owner.append(int(np.searchsorted(ends, at := at * size)))
    inner = [2 if len(axes.torch) > 3 and axis > 1 else axis for axis in owner]
    order = list(axes.order)
    for axis in {*inner}:
        places = [i for i, piece in enumerate(axes.order) if inner[piece] == axis and axes.split[piece] > 1]
        for i, piece in zip(places, sorted(axes.order[i] for i in places), strict=True):
            order[i] = piece
    fits = [axes.split[piece] for piece in order] == [axes.split[piece] for piece in axes.order]
    return replace(axes, order=tuple(order), backwards=()) if fits else None


def rows_of_heads(axes: Axes) -> bool:
    """True if the layout only permutes rows inside each head."""
    return len(axes.split) == len(axes.torch) + 2 and tuple(piece for piece in axes.order if piece < 3) == (0, 2, 1)


def say_rows(axes: Axes) -> str:
    """Describe permuted rows: 'the rows of each of 4 heads in the order 0, 3, 1, 4, ... of torch's'."""
    heads, *two = axes.split[:3]
    rows = np.arange(math.prod(two)).reshape(two).T.ravel()
    return f"the rows of each of {heads} heads in the order {', '.join(map(str, rows[:SHOWN]))}, ... of torch's"


def pattern_of(axes: Axes) -> str:
    """Return the pattern of a rule for permuted rows: '(4 2 h) d -> d (4 h 2)'."""
    heads, *two = axes.split[:3]
    first, second = ("2", "h") if two[0] == 2 else ("h", "2")
    theirs, ours = [f"({heads} {first} {second})", *"d" * (len(axes.torch) - 1)], [f"({heads} {second} {first})"]
    ours = ["d", *ours] if axes.order[0] else [*ours, *theirs[1:]]
    return f"{' '.join(theirs)} -> {' '.join(ours)}"


def of_shape(layout: Layout, shape: tuple[int, ...]) -> Layout:
    """Return the same order of axes for a torch tensor of another shape, if no axis is split or merged; else the layout
    itself."""
    if isinstance(layout, Axes) and layout.split == layout.torch and len(layout.jax) == len(layout.order) == len(shape):
        return Axes(shape, shape, layout.order, tuple(shape[axis] for axis in layout.order), layout.backwards)
    return layout


def same_numbers(theirs: np.ndarray, ours: np.ndarray) -> bool:
    """True if some order of axes makes JAX's tensor of torch's, even if it is not the only one."""
    return theirs.size == ours.size and any(True for find in LAYOUTS for _ in find(bits(theirs), bits(ours)))


def _layouts(theirs: np.ndarray, ours: np.ndarray) -> Iterator[Axes]:
    """Yield orders of torch's axes, then of JAX's; axes that are split or merged stay in order."""
    for order in permutations(range(theirs.ndim)):
        if _same_numbers(theirs.transpose(order), ours):
            yield Axes(theirs.shape, theirs.shape, order, ours.shape)
    for back in permutations(range(ours.ndim)):
        if not _in_order(back) and _same_numbers(turned := ours.transpose(back), theirs):
            yield Axes(theirs.shape, turned.shape, tuple(map(int, np.argsort(back))), ours.shape)


def _backwards(theirs: np.ndarray, ours: np.ndarray) -> Iterator[Axes]:
    """Yield orders of axes for a kernel whose spatial axes are reversed."""
    inner = tuple(range(CHANNELS, theirs.ndim))
    if inner:
        yield from (replace(axes, backwards=inner) for axes in _layouts(np.flip(theirs, inner), ours))


def _in_pairs(theirs: np.ndarray, ours: np.ndarray) -> Iterator[Axes]:
    """Yield layouts for rows that lie in halves inside each head on one side and in pairs on the other, as for rotary
    positions."""
    rows, *rest = theirs.shape if theirs.ndim in (1, 2) else (0,)
    for heads in (n for n in range(1, rows // 4 + 1) if not rows % (2 * n)):
        half = rows // heads // 2
        for two in {(2, half), (half, 2)}:
            split = (heads, *two, *rest)
            for order in ((0, 2, 1, 3), (3, 0, 2, 1)) if rest else ((0, 2, 1),):
                if _same_numbers(theirs.reshape(split).transpose(order), ours):
                    yield Axes(theirs.shape, split, order, ours.shape)


def _same_numbers(one: np.ndarray, other: np.ndarray) -> bool:
    """True if two arrays hold the same numbers in the same order, whatever their shapes."""
    if not np.array_equal(one.flat[:GLANCE], other.flat[:GLANCE]):
        return False
    return equal_numbers(one, other) if one.shape == other.shape else np.array_equal(one.ravel(), other.ravel())


def _in_order(order: tuple[int, ...]) -> bool:
    return order == tuple(range(len(order)))


LAYOUTS = _layouts, _backwards, _in_pairs
"""Searches for layouts, the usual ones first."""
