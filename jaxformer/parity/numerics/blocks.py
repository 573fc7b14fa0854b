"""Measures of large arrays, without a copy of them."""

import math

import numpy as np


def largest(array: np.ndarray) -> float:
    """Return the largest absolute value, NaN if there is one; 0 for an empty array. Floats are not copied."""
    if array.dtype.kind != "f":
        return float(np.abs(array).max(initial=0.0))
    return float(np.maximum(array.max(initial=0.0), abs(array.min(initial=0.0))))


BLOCK = 2**13
"""Number of entries that are subtracted together, so that the differences stay in a processor's cache."""


def gap_between(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Return the L2 norm and the largest absolute value of `other - one`, block by block, without a copy of either."""
    total, peak = 0.0, 0.0
    spare = np.empty(min(BLOCK, one.size), np.result_type(one, other))
    for x, y in np.nditer([one, other], flags=["external_loop", "buffered", "zerosize_ok"], buffersize=BLOCK):
        gap = np.subtract(y, x, out=spare[: len(x)])
        total, peak = total + np.vdot(gap, gap).real, np.maximum(peak, largest(gap))
    return math.sqrt(total), float(peak)
