"""The same numbers in another order along an axis: of heads, of positions, of channels."""

import numpy as np

from jaxformer.parity.explain.evidence import Difference
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

SHOWN, MOST = 8, 4096
MOST_BLOCKS = 32
"""Into which the last axis is divided, as into heads."""


def explain_order(difference: Difference) -> str:
    """'jax has torch's along axis 2 in another order, in 4 blocks of 6: 3, 2, 1, 0'; '' where numbers differ."""
    ours, theirs = difference.jax, difference.torch
    if not np.isfinite(ours).all() or not np.isfinite(theirs).all():
        return ""
    width, last = theirs.shape[-1] if theirs.ndim > 1 else 0, theirs.ndim - 1
    for axis in range(last):
        if order := order_along(ours, theirs, axis, EXPLAINED):
            return f"jax has torch's along axis {axis} in another order: {order}"
    for n in (n for n in [*range(2, MOST_BLOCKS), width] if 1 < n <= width and width % n == 0):
        mine, other = (array.reshape(*array.shape[:-1], n, -1) for array in (ours, theirs))
        if order := order_along(mine, other, last, EXPLAINED):
            blocks = f", in {n} blocks of {width // n}" if n < width else ""
            return f"jax has torch's along axis {last} in another order{blocks}: {order}"
    return ""


def order_along(ours: np.ndarray, theirs: np.ndarray, axis: int, tolerance: float) -> str:
    """'3, 2, 1, 0', torch's along an axis, if all of jax's are there."""
    mine, other = (np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1) for array in (ours, theirs))
    if not 1 < len(other) <= MOST or other.shape[1] < 2:
        return ""
    product = mine @ other.T
    order = (np.square(mine).sum(1)[:, None] + np.square(other).sum(1) - 2 * product).argmin(1)
    if len(set(order.tolist())) < len(order) or (order == np.arange(len(order))).all():
        return ""
    if distance(other[order], mine) > tolerance:
        return ""
    if len(shifts := np.unique((np.arange(len(order)) - order) % len(order))) == 1:
        return f"shifted by {shifts[0]} of {len(order)}, the last first"
    return ", ".join(map(str, order[:SHOWN].tolist())) + (", ..." if len(order) > SHOWN else "")
