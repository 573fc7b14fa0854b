"""Plain differences of two arrays: a factor, a number added, a smaller type."""

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.explain.constants import say
from jaxformer.parity.explain.evidence import Difference
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

CLEAR = 1e3 * EXPLAINED
"""relL2 of a difference to which a cap or a number added does not fit by itself."""
SMALLER = (jnp.bfloat16, jnp.float16)


def factor_between(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """c for which c times torch's array is nearest to jax's, by least squares, and how far the two are apart then: relL2."""
    factor = float((ours * theirs).sum() / (np.square(theirs).sum() or 1.0))
    return factor, distance(ours, factor * theirs)


def cap_between(ours: np.ndarray, theirs: np.ndarray) -> float:
    """c for which jax's array is c tanh(torch's / c); 0 where there is none."""
    at = np.argmax(np.abs(theirs))
    x, y = abs(float(theirs.flat[at])), abs(float(ours.flat[at]))
    if not 0 < y < x:
        return 0.0
    low, high = y, 2 * x / np.sqrt(3 * (1 - y / x))  # tanh(u) > u - u^3/3; twice, for rounding
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * np.tanh(x / middle) < y else (low, middle)
    cap = round_number(low)
    near = [
        value for n in range(1, 14) if distance(ours, (value := float(f"{cap:.{n}g}")) * np.tanh(theirs / value)) <= EXPLAINED
    ]
    return near[0] if near else 0.0


def explain_plainly(difference: Difference) -> str:
    """'jax gives 4.89897949 = sqrt(24) times torch's (residual 3e-17)'; '' where it is not so plain."""
    ours, theirs = difference.jax, difference.torch
    if theirs.size < 2 or not np.isfinite(ours).all() or not np.isfinite(theirs).all():
        return ""
    for kind in SMALLER:
        if np.array_equal(theirs.astype(kind).astype(ours.dtype), ours):
            return f"jax gives torch's, rounded to {np.dtype(kind).name}"
    if theirs.any() and not ours.any():
        return "jax gives zeros"
    factor, residual = factor_between(ours, theirs)
    if residual <= EXPLAINED < abs(factor - 1):
        return f"jax gives {say(round_number(factor))} times torch's (residual {residual:.0e})"
    if distance(ours, theirs) <= CLEAR:
        return ""
    if cap := cap_between(ours, theirs):
        return f"jax gives torch's, capped at {say(cap)}: {say(cap)} tanh(x/{say(cap)})"
    added = float((ours - theirs).mean())
    residual = distance(ours, theirs + added)
    return f"jax gives torch's plus {say(round_number(added))} (residual {residual:.0e})" if residual <= EXPLAINED else ""


def round_number(x: float) -> float:
    """Without the last digits, where rounding is."""
    return float(f"{x:.13g}")
