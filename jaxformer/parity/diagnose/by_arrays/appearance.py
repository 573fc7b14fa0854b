"""What a difference looks like that nothing explains: where it is, and how the two arrays go together."""

from collections.abc import Iterator

import numpy as np

from jaxformer.parity.diagnose.by_arrays.order import order_along
from jaxformer.parity.diagnose.orders import arranged
from jaxformer.parity.numerics.metrics import distance
from jaxformer.parity.report.summarize import part_of

ALIKE = 1e-9
"""relL2 of what counts as one array here."""
FARTHEST = 3
"""Along an axis."""
TYPES = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-25}
"""Half the distance of neighbouring numbers, as a part of them."""


def appearance(ours: np.ndarray, theirs: np.ndarray) -> str:
    """'only at positions 7-16 of 17; a factor of its own in each channel'; '' where nothing strikes."""
    if ours.shape != theirs.shape or not theirs.ndim or {ours.dtype.kind, theirs.dtype.kind} != {"f"}:
        return ""
    if (wrong := int((~np.isfinite(ours) & np.isfinite(theirs)).sum())) or not np.isfinite(theirs).all():
        return f"NaN or infinite in {wrong} of {ours.size} entries" if wrong else ""
    if not np.any(ours != theirs):
        return ""
    found = [*where(ours, theirs)]
    return "; ".join([*found, *([] if (how := next(kinds(ours, theirs), "")) == "" else [how])])


def where(ours: np.ndarray, theirs: np.ndarray) -> Iterator[str]:
    """Along which axes only a part differs."""
    off = np.abs(ours - theirs) > ALIKE * np.sqrt(np.square(theirs).mean())
    for axis in range(theirs.ndim):
        some = np.asarray(off.any(tuple(other for other in range(theirs.ndim) if other != axis)))
        if some.any() and not some.all():
            name = "rows" if axis == 0 else "positions" if axis == 1 and theirs.ndim == 3 else ""
            part = part_of(some, name)
            yield f"only {'at' if name == 'positions' else 'in'} {part}" + ("" if name else f" along axis {axis}")


def kinds(ours: np.ndarray, theirs: np.ndarray) -> Iterator[str]:
    """How the one comes of the other, the plain ones first."""
    for axis in range(theirs.ndim):
        for steps in (step for n in range(1, min(FARTHEST, theirs.shape[axis] - 1) + 1) for step in (n, -n)):
            late, early = (
                np.take(array, range(max(by, 0), array.shape[axis] + min(by, 0)), axis)
                for array, by in ((ours, steps), (theirs, -steps))
            )
            if early.any() and distance(late, early) <= ALIKE:
                yield f"torch's, {abs(steps)} {'later' if steps > 0 else 'earlier'} along axis {axis}"
    for axis in range(theirs.ndim):
        if order := order_along(ours, theirs, axis, ALIKE):
            yield f"torch's, with axis {axis} {arranged(order)}"
    for axis in range(theirs.ndim):
        others = tuple(other for other in range(theirs.ndim) if other != axis)
        name = "channel" if axis == theirs.ndim - 1 else "row" if axis == 0 else f"place along axis {axis}"
        square = np.square(theirs).sum(others, keepdims=True)
        factors = (ours * theirs).sum(others, keepdims=True) / np.where(square > 0, square, 1)
        if theirs.shape[axis] < theirs.size and distance(factors * theirs, ours) <= ALIKE:
            yield f"a factor of its own in each {name}"
        if theirs.shape[axis] < theirs.size and distance(theirs + (ours - theirs).mean(others, keepdims=True), ours) <= ALIKE:
            yield f"a number of its own added in each {name}"
    changes = np.abs(ours / theirs - 1)[theirs != 0]
    for name, half in TYPES.items():
        if changes.size and changes.max() <= 2 * half and np.median(changes) >= half / 8:
            yield f"the size of {name}'s rounding"
