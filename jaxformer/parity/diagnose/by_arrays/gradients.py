"""Explain gradients that differ: NaN, a gradient that stops, rows without one, a factor."""

import numpy as np

from jaxformer.parity.diagnose.by_arrays.values import factor_between
from jaxformer.parity.diagnose.diagnosis import Candidate, plain
from jaxformer.parity.diagnose.evidence import Difference
from jaxformer.parity.diagnose.mutation import Change
from jaxformer.parity.numerics.metrics import EXPLAINED, distance
from jaxformer.parity.report.summarize import part_of

NOT_FINITE = Change(
    "gradient.not_finite",
    "jax's gradient is NaN or infinite in {wrong} of {size} entries, torch's in none",
    torch="",
    symptom=True,
)
STOPS_IN_TORCH = Change(
    "gradient.stops_in_torch",
    "torch stops the {what} (detach); jax does not: `stop_gradient` is missing",
    torch="",
)
STOPS_IN_JAX = Change(
    "gradient.stops_in_jax",
    "torch lets the {what} through; jax gives none (`stop_gradient`, or it does not read that)",
    torch="",
)
TIMES = Change("gradient.factor", "jax multiplies torch's {what} by {by:.9g}", torch="")
ONE_ROW = Change(
    "gradient.one_row",
    "jax's gradient differs in {rows} alone: torch's padding_idx gives that row none from the lookup of a tied table",
    torch="",
)
IS_ZERO = Change("gradient.zero", "{side}'s gradient is 0 in {where}, where {other}'s is not{why}", torch="")


def explain_gradient(difference: Difference) -> Candidate | None:
    """Explain a gradient by NaN, by a gradient that stops on one side, or by rows that get none."""
    jax, torch = difference.jax, difference.torch
    if not np.isfinite(torch).all():
        return None
    if wrong := int((~np.isfinite(jax)).sum()):
        return plain(NOT_FINITE, wrong=wrong, size=jax.size)
    what = difference.what or "the gradient"
    if not torch.any():
        return plain(STOPS_IN_TORCH, what=what)
    if not jax.any():
        return plain(STOPS_IN_JAX, what=what)
    stopped = next(filter(None, (partly_stopped(jax, torch, axis) for axis in range(jax.ndim))), None)
    return stopped or (one_row(jax, torch) if difference.padded else None)


def explain_factor(difference: Difference) -> Candidate | None:
    """Explain a gradient of several entries by a constant factor, which tells less than code that gives it."""
    jax, torch = difference.jax, difference.torch
    if jax.size == 1 or not np.isfinite([jax, torch]).all() or not torch.any():
        return None
    factor, residual = factor_between(jax, torch)
    is_factor = residual <= EXPLAINED < abs(factor - 1)
    return plain(TIMES, residual, what=difference.what or "gradient", by=factor) if is_factor else None


def one_row(jax: np.ndarray, torch: np.ndarray) -> Candidate | None:
    """Explain the gradient of a table that differs in one row: torch's `padding_idx` row gets none from the lookup, only those
    of the table's other uses."""
    if jax.ndim != 2:
        return None
    differs = np.asarray(~np.isclose(jax, torch, rtol=0, atol=EXPLAINED * np.abs(torch).max()).all(-1))
    if differs.sum() != 1:
        return None
    return plain(ONE_ROW, rows=part_of(differs, "rows"))


def partly_stopped(jax: np.ndarray, torch: np.ndarray, axis: int) -> Candidate | None:
    """Explain a gradient that is 0 at some places along an axis on one side alone, and equal elsewhere."""
    others = tuple(other for other in range(jax.ndim) if other != axis)
    what = "rows" if axis == 0 else "positions" if axis == 1 and jax.ndim == 3 else ""
    where = "" if what else f" along axis {axis}"
    for side, array, name, other in (("jax", jax, "torch", torch), ("torch", torch, "jax", jax)):
        empty = np.asarray(~array.any(others) & other.any(others))
        if empty.any() and distance(np.compress(~empty, jax, axis), np.compress(~empty, torch, axis)) <= EXPLAINED:
            one_row = side == "torch" and axis == 0 and empty.sum() == 1 and jax.ndim == 2
            why = ": as torch's padding_idx has it" if one_row else ""
            return plain(IS_ZERO, side=side, where=f"{part_of(empty, what) or 'all rows'}{where}", other=name, why=why)
    return None
