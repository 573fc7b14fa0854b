"""Arrays that say by themselves why they differ: their types, ids that are shifted, axes in another order."""

import itertools

import numpy as np

from jaxformer.parity.explain.evidence import Difference
from jaxformer.parity.numerics.axis_order import orders_for, to_jax_axes
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

MOST_AXES = 5


def explain_cast(difference: Difference) -> str:
    """Where jax gives another type than torch's floats."""
    ours, theirs = difference.jax.dtype, difference.torch.dtype
    casts = ours != theirs and np.issubdtype(theirs, np.floating)
    return f"jax gives {ours} in a {theirs} run: something casts" if casts else ""


def explain_axes(difference: Difference) -> str:
    """Where jax's array is torch's with its axes in another order."""
    ours, theirs = difference.jax, difference.torch
    for order in orders_for(theirs.shape, ours.shape)[1:]:
        if (residual := distance(to_jax_axes(theirs, order, ours.shape), ours)) <= EXPLAINED:
            return f"jax gives torch's axes in the order {', '.join(map(str, order))} (residual {residual:.0e})"
    return reshaped(ours, theirs)


def reshaped(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Where jax has the same numbers, reshaped where axes have to be in another order: before torch's order, or behind it."""
    if ours.shape != theirs.shape or ours.size < 2:
        return ""
    for order in itertools.permutations(range(theirs.ndim)) if theirs.ndim <= MOST_AXES else ():
        back, shape = np.argsort(order), tuple(theirs.shape[axis] for axis in order)
        for array in (theirs.reshape(shape).transpose(back), theirs.transpose(order).reshape(theirs.shape)):
            if not np.array_equal(array, theirs) and (residual := distance(array, ours)) <= EXPLAINED:
                return f"jax reshapes where axes change to the order {', '.join(map(str, order))} (residual {residual:.0e})"
    return ""


def explain_ids(difference: Difference) -> str:
    """Where jax's ids are torch's plus a number, or have another one in the place of one of torch's."""
    ours, theirs = difference.jax.astype(np.int64), difference.torch.astype(np.int64)
    shifts = np.unique(ours - theirs)
    if shifts.size == 1:
        return f"jax looks up ids {shifts[0]:+d} from torch's"
    most, least = ours.max(), ours.min()
    for shift in shifts[shifts != 0]:
        if np.array_equal((theirs + shift).clip(least, most), ours) and ((theirs + shift != ours).sum() * 2 < ours.size):
            return f"jax looks up ids {shift:+d} from torch's, {f'{most} at most' if shift > 0 else f'{least} at least'}"
    wrong = ours != theirs
    mine, other = (np.unique(array[wrong]) for array in (ours, theirs))
    if mine.size > 1 or other.size > 1:
        return ""
    places = np.unique(np.nonzero(wrong)[-1])
    where = f" at position {places[0]}" if places.size == 1 and theirs.ndim > 1 else ""
    return f"jax has id {mine[0]} where torch has {other[0]}{where}"
