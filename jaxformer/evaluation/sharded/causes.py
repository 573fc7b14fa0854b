"""Explain why an array on a mesh differs from that of a single device, by trying formulas of the usual mistakes on both."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxformer.parity.numerics.metrics import EXPLAINED, distance
from jaxformer.runtime.xla_options import exact


class Placed:
    """Array as the devices of a mesh hold it."""

    def __init__(self, array: Any, mesh: Mesh):
        self.whole = np.asarray(array)
        self.sizes = {name: size for name, size in mesh.shape.items() if size > 1}
        place = {device: np.argwhere(mesh.devices == device)[0] for device in mesh.devices.flat}
        self.held: list[tuple[dict[str, int], tuple[Any, ...], np.ndarray]] = [
            (dict(zip(mesh.axis_names, map(int, place[shard.device]), strict=True)), shard.index, np.asarray(shard.data))
            for shard in array.addressable_shards
            if shard.device in place
        ]

    def along(self, axis: str) -> Iterator[tuple[tuple[Any, ...], list[np.ndarray]]]:
        """Yield the index and the copies of each part along a mesh axis; nothing if the axis shards the array."""
        groups: dict[Any, list[tuple[int, tuple[Any, ...], np.ndarray]]] = {}
        for place, index, data in self.held:
            others = tuple(n for name, n in place.items() if name != axis)
            groups.setdefault(others, []).append((place[axis], index, data))
        for group in groups.values():
            if len({str(index) for _, index, _ in group}) == 1:
                yield group[0][1], [data for _, _, data in sorted(group, key=lambda each: each[0])]

    def differing(self) -> list[str]:
        """Return the mesh axes along which copies differ that should be equal."""
        return [
            axis for axis in self.sizes if any(not explained(each, those[0]) for _, those in self.along(axis) for each in those)
        ]


def explain(placed: Placed, reference: np.ndarray) -> tuple[list[str], str]:
    """Return the candidate axes and the mistake; [] and '' if no formula explains the array."""
    differing = placed.differing()
    formulas = OF_COPIES if differing else OF_WHOLES
    for say, formula in formulas.items() if np.issubdtype(reference.dtype, np.inexact) else ():
        if fit := [axis for axis in differing or placed.sizes if formula(placed, reference, axis)]:
            return fit, say
    return (differing, STALE) if differing else ([], "")


def explained(ours: np.ndarray, reference: np.ndarray) -> bool:
    """True if an array equals the reference within EXPLAINED."""
    return ours.shape == reference.shape and distance(ours, reference) <= EXPLAINED


def sum_left_out(placed: Placed, reference: np.ndarray, axis: str) -> bool:
    """True if each device holds its own part of a sum; a bias that each of them added counts once."""
    groups = list(placed.along(axis))
    return bool(groups) and all(up_to_a_bias(np.sum(those, axis=0), reference[index]) for index, those in groups)


def other_axis(placed: Placed, reference: np.ndarray, axis: str) -> bool:
    """True if parts were summed over another axis, along which all devices hold equal values."""
    others = [size for name, size in placed.sizes.items() if name != axis]
    sums = [(np.sum(those, axis=0), reference[index]) for index, those in placed.along(axis)]
    return bool(sums) and any(all(up_to_a_bias(ours, size * theirs) for ours, theirs in sums) for size in others)


def up_to_a_bias(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """True if two arrays are equal but for one row added to all rows of either. An array of a single row must be equal."""
    if ours.shape != theirs.shape or ours.size <= ours.shape[-1]:
        return explained(ours, theirs)
    row = (ours - theirs).reshape(-1, ours.shape[-1])[0]
    return explained(ours - row, theirs)


def mean_left_out(placed: Placed, reference: np.ndarray, axis: str) -> bool:
    """True if each device holds its own value in place of the mean. If a differing copy is right, another is stale instead."""
    groups = [(those, reference[index]) for index, those in placed.along(axis)]
    apart = [(those, theirs) for those, theirs in groups if not all(explained(each, those[0]) for each in those)]
    is_one_right = any(explained(each, theirs) for those, theirs in apart for each in those)
    return bool(groups) and not is_one_right and all(explained(np.mean(those, axis=0), theirs) for those, theirs in groups)


def too_often(placed: Placed, reference: np.ndarray, axis: str) -> bool:
    """True if copies that were complete already were summed."""
    return explained(placed.whole, reference * placed.sizes[axis])


def divided(placed: Placed, reference: np.ndarray, axis: str) -> bool:
    """True if a mean was taken in place of a sum."""
    return explained(placed.whole, reference / placed.sizes[axis])


def repeated(placed: Placed, reference: np.ndarray, axis: str) -> bool:
    """True if units are zero at the same places in each shard, but not on one device."""
    ours, theirs = placed.whole == 0, reference == 0
    return any(
        same_blocks(ours, dim, placed.sizes[axis]) and not same_blocks(theirs, dim, placed.sizes[axis])
        for dim in range(ours.ndim)
        if ours.shape[dim] % placed.sizes[axis] == 0 and ours.any() and not ours.all()
    )


def first_shard(placed: Placed, reference: np.ndarray, axis: str) -> bool:
    """True if every shard has the values of the first."""
    return _blocks(placed, reference, axis, lambda ours, theirs: all(explained(block, theirs[0]) for block in ours))


def other_order(placed: Placed, reference: np.ndarray, axis: str) -> bool:
    """True if the shards are right but stand in another order."""

    def permuted(ours: list[np.ndarray], theirs: list[np.ndarray]) -> bool:
        is_moved = any(not explained(block, other) for block, other in zip(ours, theirs, strict=True))
        return is_moved and all(any(explained(block, other) for other in theirs) for block in ours)

    return _blocks(placed, reference, axis, permuted)


def _blocks(placed: Placed, reference: np.ndarray, axis: str, fits: Callable[..., bool]) -> bool:
    n = placed.sizes[axis]
    return any(
        fits(np.split(placed.whole, n, dim), np.split(reference, n, dim))
        for dim in range(reference.ndim)
        if reference.shape[dim] % n == 0 and placed.whole.shape == reference.shape
    )


def same_blocks(array: np.ndarray, dim: int, n: int) -> bool:
    """True if an array is n copies of one block."""
    first, *others = np.split(array, n, dim)
    return all(np.array_equal(first, other) for other in others)


STALE = "copies differ: a device has an older or another value"
Formula = Callable[[Placed, np.ndarray, str], bool]
"""Mistake: formula(placed, reference, axis) is True if it explains the array."""
OF_COPIES: Mapping[str, Formula] = {
    "the sum over it is left out: each device holds its own part": sum_left_out,
    "the sum is over another axis instead": other_axis,
    "the mean over it is left out: each device holds its own value": mean_left_out,
}
"""Mistakes in arrays whose copies differ: description -> formula."""
OF_WHOLES: Mapping[str, Formula] = {
    "summed over it once too often": too_often,
    "divided by its size once too often": divided,
    "dropout repeats in each shard": repeated,
    "every shard has the first one's values": first_shard,
    "the shards stand in another order": other_order,
}
"""Mistakes in arrays whose copies agree: description -> formula."""


def shard_means(loss: Callable[..., tuple[Any, Any]], model: Any, batch: Any, parts: int) -> float:
    """Return the mean of the mean losses of equal parts of a batch, which is wrong if the parts' counts differ."""
    rows = [jax.tree.map(lambda leaf, i=i: np.split(np.asarray(leaf), parts)[i], batch) for i in range(parts)]
    of = jax.jit(lambda model, part: loss(model, part, None), compiler_options=exact())
    found = [of(model, part) for part in rows]
    return float(np.mean([np.asarray(total) / np.asarray(count) for total, count in found]))
