"""Order of torch's axes in jax's arrays, found from shapes and from values; and slices of arrays along an axis."""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from jaxformer.parity.numerics.metrics import distance

Order = tuple[int, ...]
"""Permutation of torch's axes that gives jax's order."""

MOST_ORDERS = 24
"""Maximum number of orders to try: the permutations of four axes of equal size."""
CLEAR = 0.5
"""Another order is better only if its error is below this fraction of the usual order's error."""
SQUARABLE = 1e100
"""Numbers are clipped to this magnitude before squaring: larger ones, as in masks, would overflow."""
SAMPLE = 4096
"""Number of entries of a larger array to compare: nearly always enough to find the nearest order."""


@cache
def orders_for(torch: tuple[int, ...], jax: tuple[int, ...]) -> tuple[Order, ...]:
    """Return the orders of torch's axes that give jax's shape, the identity first; empty if no order does.

    Axes may also be split or merged, as for attention heads; then only axes of equal size are permuted. If jax has more axes
    (rows and columns of an image where torch has one axis of patches), orders whose axes can be split to jax's shape count too.
    If jax has one axis of patches, channels may be behind it.
    """
    straight, usual = torch == jax or split_or_merged(torch, jax), tuple(range(len(torch)))
    split = straight and len(jax) > len(torch)
    wanted = torch if straight else jax
    if jax == (*torch[:1], math.prod(torch[2:]), *torch[1:2]) and 3 < len(torch) <= 5:
        return (*[usual] * straight, (0, *usual[2:], 1))
    if len(wanted) != len(torch) or len(torch) > 5:
        return (usual,) if straight else ()
    ones = [axis for axis, size in enumerate(torch) if size == 1]

    def fits(order: Order) -> bool:
        shape = tuple(torch[axis] for axis in order)
        return [axis for axis in order if axis in ones] == ones and (shape == wanted or (split and split_or_merged(shape, jax)))

    return tuple(itertools.islice(filter(fits, itertools.permutations(usual)), MOST_ORDERS))


def split_or_merged(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """True if one shape splits axes of the other: both have the same number of entries, and the axis boundaries of the shorter
    shape are among those of the longer one."""
    few, many = (list(itertools.accumulate(shape, operator.mul)) for shape in sorted((one, other), key=len))
    return 1 < len(few) < len(many) and few[-1] == many[-1] and set(few) <= set(many)


def to_jax_axes(torch: Any, order: Order, shape: tuple[int, ...]) -> Any:
    """Convert torch's array to jax's axes and shape."""
    return torch.transpose(order).reshape(shape)


def to_torch_axes(jax: np.ndarray, order: Order, shape: tuple[int, ...]) -> np.ndarray:
    """Convert jax's array to torch's axes and shape: the inverse of `to_jax_axes`."""
    return jax.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))


def order_of(torch: np.ndarray, jax: np.ndarray, known: Order | None = None, valid: np.ndarray | None = None) -> Order | None:
    """Return the known order if it fits, else the one in which torch's array is nearest to jax's; None if no order fits.

    Only the entries of torch's array that are True in `valid` are compared.
    """
    orders = orders_for(torch.shape, jax.shape)
    if known in orders:
        return known
    return nearer_order(torch, jax, orders[0], valid) if orders else None


def nearer_order(torch: np.ndarray, jax: np.ndarray, usual: Order, valid: np.ndarray | None = None) -> Order:
    """Return the usual order, unless torch's array is much nearer to jax's in another order that fits."""
    if (sampled := plain_order(torch, jax, valid)) is not None:
        return sampled
    if np.array_equal(to_jax_axes(torch, usual, jax.shape), jax):
        return usual
    orders = orders_for(torch.shape, jax.shape)
    gaps = distances(torch, jax, orders, valid)
    best = int(np.argmin(gaps))
    return orders[best] if gaps[best] < CLEAR * gaps[orders.index(usual)] else usual


def plain_order(torch: np.ndarray, jax: np.ndarray, valid: np.ndarray | None = None) -> Order | None:
    """Return the order in which torch's array is by far the nearest to jax's, judged on a sample of entries; None if no order
    is clearly the nearest."""
    orders = orders_for(torch.shape, jax.shape)
    if len(orders) < 2:
        return next(iter(orders), None)
    places = np.random.default_rng(0).integers(jax.size, size=SAMPLE) if jax.size > SAMPLE else None
    gaps = distances(torch, jax, orders, valid, places)
    nearest, second = np.sort(gaps)[:2]
    return orders[int(np.argmin(gaps))] if nearest < CLEAR * second else None


def aligned(torch: np.ndarray, jax: np.ndarray, known: Order | None = None) -> np.ndarray:
    """Return torch's array with jax's axes; unchanged if no order fits."""
    order = order_of(torch, jax, known)
    return torch if order is None else to_jax_axes(torch, order, jax.shape)


def repeated(jax: np.ndarray, torch: np.ndarray) -> bool:
    """True if the shapes broadcast to one of the two: one side holds once what the other side repeats, such as positions that
    are equal in all rows."""
    try:
        return np.broadcast_shapes(jax.shape, torch.shape) in (jax.shape, torch.shape)
    except ValueError:
        return False


def added_up(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum the gradient of a repeated (broadcast) array over the repeated axes, to this shape."""
    lead = gradient.ndim - len(shape)
    more = [lead + axis for axis, size in enumerate(shape) if size == 1 != gradient.shape[lead + axis]]
    return gradient.sum((*range(lead), *more)).reshape(shape)


def distances(
    torch: np.ndarray,
    jax: np.ndarray,
    orders: tuple[Order, ...],
    valid: np.ndarray | None = None,
    places: np.ndarray | None = None,
) -> np.ndarray:
    """Return the RMS distance of jax's array from torch's in each order; only at the positions `places` of jax's flat array, if
    given."""

    def here(array: np.ndarray, order: Order) -> np.ndarray:
        """Return the entries of an array with torch's axes at the compared positions of jax's array."""
        if places is None:
            return to_jax_axes(array, order, jax.shape)
        found = np.unravel_index(places, [torch.shape[axis] for axis in order])
        return array[tuple(found[order.index(axis)] for axis in range(torch.ndim))]

    def real(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mask of finite entries, and the array clipped to `SQUARABLE` with zeros for non-finite entries."""
        array = (np.stack([np.real(array), np.imag(array)]) if np.iscomplexobj(array) else array).astype(np.float64)
        finite = np.isfinite(array)
        return finite, np.where(finite, np.clip(array, -SQUARABLE, SQUARABLE), 0.0)

    def gap(order: Order) -> float:
        (finite, t), compared = real(here(torch, order)), True if valid is None else here(valid, order)
        apart = np.where(finite & finite_j & compared, j - t, 0.0)
        return float(np.sqrt((apart**2).mean()) + size * ((finite != finite_j) & compared).mean())

    finite_j, j = real(jax if places is None else jax.reshape(-1)[places])
    size = np.sqrt((real(here(torch, orders[0]))[1] ** 2).mean())
    with np.errstate(invalid="ignore"):
        return np.array([gap(order) for order in orders])


Part = tuple[slice, ...]
ALL = slice(None)
AGAIN = 1e-13
"""Largest relL2 between an array and its recomputation: fused kernels sum in a different order."""


def parts_as_large(whole: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Part]:
    """Yield the slices of shape `whole` along one axis that have the sizes in `wanted`, in any order of axes."""
    for axis, size in enumerate(whole):
        less = Counter(wanted) - Counter(whole[:axis] + whole[axis + 1 :])
        if len(whole) == len(wanted) and less.total() == 1 and 0 < (left := next(iter(less))) < size:
            for part in (slice(left), slice(size - left, None)):
                yield (*[ALL] * axis, part)


def part_of(whole: np.ndarray, wanted: np.ndarray) -> Part:
    """Return the slice of a larger array that equals an array; the empty slice (all of it) if no slice does."""
    parts = parts_as_large(whole.shape, wanted.shape)
    return next((part for part in parts if whole[part].shape == wanted.shape and distance(whole[part], wanted) <= AGAIN), ())
