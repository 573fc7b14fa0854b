"""Why a running statistic differs after a call in training mode: old + momentum (batch's - old), in which both may be other."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxformer.parity.explain.evidence import OLD, Difference
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

SAME = 1e-9


class Update(NamedTuple):
    """How a side comes to its new array."""

    statistic: str
    """Of the batch's input."""
    momentum: float
    """torch's: the part of the new one; flax's is 1 minus it."""
    residual: float


def explain_running(difference: Difference) -> str:
    """'torch momentum 0.1, variance unbiased; jax momentum 0.9, variance biased (residual 2e-16)', or ''."""
    old, x = difference.evidence.before[OLD], difference.evidence.before["input"]
    known = dict(statistics(x, len(old)))
    theirs = next(updates(known, old, difference.torch), None)
    if theirs is None:
        return ""
    if np.array_equal(difference.jax, old):
        return f"torch updates it by momentum {theirs.momentum:.9g}; jax leaves it as it was"
    ours = sorted(updates(known, old, difference.jax), key=lambda each: each.statistic != theirs.statistic)
    return apart(theirs, ours[0]) if ours else ""


def updates(known: dict[str, np.ndarray], old: np.ndarray, new: np.ndarray) -> Iterator[Update]:
    """All that give the new array: the momentum is solved for."""
    for name, statistic in known.items():
        step = statistic - old
        momentum = float((new - old) @ step / (step @ step)) if step.any() else 0.0
        residual = distance(old + momentum * step, new)
        if residual <= EXPLAINED:
            yield Update(name, momentum, residual)


def apart(theirs: Update, ours: Update) -> str:
    """In what two of them differ."""
    parts = [], []
    t, j = theirs.momentum, ours.momentum
    more = ""
    if abs(t - j) > SAME:
        for part, side in zip(parts, (theirs, ours), strict=True):
            part.append(f"momentum {side.momentum:.9g}")
        if abs(t + j - 1) < SAME:
            more = ": flax's is 1 minus torch's"
        elif abs((1 - t) ** 2 - (1 - j)) < SAME:
            more = ": it updates twice"
    if theirs.statistic != ours.statistic:
        for part, side in zip(parts, (theirs, ours), strict=True):
            part.append(side.statistic)
    if not parts[0]:
        return ""
    residual = max(theirs.residual, ours.residual)
    return f"torch {', '.join(parts[0])}; jax {', '.join(parts[1])}{more} (residual {residual:.0e})"


def statistics(x: np.ndarray, channels: int) -> Iterator[tuple[str, np.ndarray]]:
    """What may be updated with, torch's own first: of axis 1 of a module's input, and of other axes of as many entries."""
    for axis in (axis for axis in range(1, x.ndim) if x.shape[axis] == channels):
        where = "" if axis == 1 else f" along axis {axis}"
        flat = np.moveaxis(x, axis, -1).reshape(-1, channels)
        yield f"mean{where}", flat.mean(0)
        if len(flat) > 1:
            yield f"variance unbiased{where}", flat.var(0, ddof=1)
        yield f"variance biased{where}", flat.var(0)
        yield f"mean of squares{where}", np.square(flat).mean(0)
        yield f"standard deviation{where}", flat.std(0)
        rows = np.moveaxis(x, axis, -1).reshape(len(x), -1, channels)
        yield f"mean of the first row{where}", rows[0].mean(0)
        if rows.shape[1] > 1:
            yield f"variance of each row, averaged{where}", rows.var(1).mean(0)
            yield f"variance between rows{where}", rows.mean(1).var(0)
            yield f"mean of the first position{where}", rows[:, 0].mean(0)
