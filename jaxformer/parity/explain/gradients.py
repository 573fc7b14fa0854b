"""Why a gradient differs."""

import numpy as np

from jaxformer.parity.explain.evidence import Difference
from jaxformer.parity.explain.factor import factor_between
from jaxformer.parity.numerics.metrics import EXPLAINED, distance
from jaxformer.parity.report.summarize import part_of


def explain_gradient(difference: Difference) -> str:
    """What is plain about it: NaN, a constant factor, or rows that get none on one side."""
    ours, theirs = difference.jax, difference.torch
    if not np.isfinite(theirs).all():
        return ""
    if wrong := int((~np.isfinite(ours)).sum()):
        return f"jax's gradient is NaN or infinite in {wrong} of {ours.size} entries, torch's in none"
    what = difference.what or "the gradient"
    if not theirs.any():
        return f"{what} stops in torch (detach or no_grad), and not in jax"
    if not ours.any():
        return f"{what} stops in jax (stop_gradient), and not in torch"
    factor, residual = factor_between(ours, theirs)
    if residual <= EXPLAINED < abs(factor - 1):
        return f"jax's {difference.what or 'gradient'} is {factor:.9g} times torch's (residual {residual:.0e})"
    return next(filter(None, (partly_stopped(ours, theirs, axis) for axis in range(ours.ndim))), "") or one_row(ours, theirs)


def one_row(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Which row of a table alone differs: with torch's padding_idx, it has the gradients of the table's other uses alone."""
    if ours.ndim != 2:
        return ""
    differs = np.asarray(~np.isclose(ours, theirs, rtol=0, atol=EXPLAINED * np.abs(theirs).max()).all(-1))
    if differs.sum() != 1:
        return ""
    return f"jax's gradient differs in {part_of(differs, 'rows')} alone: as torch's padding_idx has it in a table that is tied"


def partly_stopped(ours: np.ndarray, theirs: np.ndarray, axis: int) -> str:
    """Where along an axis one side alone has none, if that is all that differs."""
    others = tuple(other for other in range(ours.ndim) if other != axis)
    what = "rows" if axis == 0 else "positions" if axis == 1 and ours.ndim == 3 else ""
    where = "" if what else f" along axis {axis}"
    for side, array, name, other in (("jax", ours, "torch", theirs), ("torch", theirs, "jax", ours)):
        empty = np.asarray(~array.any(others) & other.any(others))
        if empty.any() and distance(np.compress(~empty, ours, axis), np.compress(~empty, theirs, axis)) <= EXPLAINED:
            says = f"{side}'s gradient is 0 in {part_of(empty, what) or 'all rows'}{where}, where {name}'s is not"
            one_row = side == "torch" and axis == 0 and empty.sum() == 1 and ours.ndim == 2
            return f"{says}: as torch's padding_idx has it" if one_row else says
    return ""
