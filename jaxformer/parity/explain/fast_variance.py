"""A variance that is computed as E[x^2] - E[x]^2: its digits cancel where the mean is large.

Flax's norms do so by default (`use_fast_variance`), torch's do not. What it makes is rounding, so no formula gives jax's array.
It is known by its look: what is normalised together is off by one factor, and the factors are as large as rounding makes them.
"""

from collections.abc import Callable, Iterator

import numpy as np

from jaxformer.parity.explain.evidence import Difference, Evidence
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

SAYS = (
    "jax as if it computed the variance as E[x^2] - E[x]^2, whose digits cancel where the mean is large, "
    "as Flax's norms do by default; give them use_fast_variance=False"
)
OTHER = 1 / 3
"""How much of the error may be something else."""
LEAST, SMALLEST, LARGEST = 20.0, 1e-2, 10.0
"""The square of the mean is so many variances; the factors are between these parts of what rounding may make them."""
Together = Callable[[np.ndarray], np.ndarray]
"""Turns an array into rows, each of which is normalised by itself."""


def explain_cancelled(difference: Difference) -> str:
    """In float64, where an error is so small that any formula explains it."""
    if distance(difference.jax, difference.torch) > EXPLAINED:
        return ""
    return fast_variance(difference.evidence, difference.jax, difference.torch, 2.0**-53)


def fast_variance(evidence: Evidence, ours: np.ndarray, theirs: np.ndarray, roundoff: float) -> str:
    """Whether jax's output of a norm, in numbers of that unit roundoff, is off as such a variance makes it; '' elsewhere."""
    x, bias = evidence.before.get("input"), evidence.parameters.get("bias", np.zeros(1))
    if x is None or x.shape != theirs.shape != () or not np.isfinite(ours).all() or not np.isfinite(theirs).all():
        return ""
    scaled = [theirs - bias.reshape(-1, *[1] * behind) for behind in (0, theirs.ndim - 2) if fits(bias, theirs, behind)]
    return SAYS if any(is_cancelled(rows, x, ours - theirs, y, roundoff) for rows in together(x) for y in scaled) else ""


def fits(bias: np.ndarray, y: np.ndarray, behind: int) -> bool:
    """Whether a bias is of the axis that has so many axes behind it."""
    return 0 <= behind < y.ndim and bias.size in (1, y.shape[-1 - behind])


def is_cancelled(rows: Together, x: np.ndarray, off: np.ndarray, scaled: np.ndarray, roundoff: float) -> bool:
    """Whether the error is a factor of each row, of that size."""
    x, off, scaled = (rows(array) for array in (x, off, scaled))
    size = np.square(scaled).sum(1)
    factors = (off * scaled).sum(1) / np.where(size, size, 1.0)
    variance = x.var(1)
    conditions = np.square(x.mean(1)) / np.where(variance, variance, np.inf)
    expected, largest = roundoff * conditions.max(), np.abs(factors).max()
    if conditions.max() < LEAST or not SMALLEST * expected <= largest <= LARGEST * expected:
        return False
    return distance(factors[:, None] * scaled, off) < OTHER


def together(x: np.ndarray) -> Iterator[Together]:
    """As layer norm normalises, over the last axes; as group norm, and as batch norm, with channels last or first."""
    for axis in range(x.ndim - 1, 0, -1):
        yield lambda array, axis=axis: array.reshape(int(np.prod(array.shape[:axis])), -1)
    for groups in range(2, x.shape[1] // 2 + 1 if x.ndim > 2 else 0):
        if x.shape[1] % groups == 0:
            yield lambda array, groups=groups: array.reshape(len(array) * groups, -1)
    for axis in {1, x.ndim - 1}:
        if x.ndim > 1:
            yield lambda array, axis=axis: np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
