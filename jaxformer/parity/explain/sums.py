"""Sums of what came before, with constant factors: residuals and scales."""

from collections.abc import Mapping

import numpy as np

from jaxformer.parity.explain.evidence import Difference
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

MANY = 1000
"""Entries that are enough to tell whether factors fit by chance."""


def explain_sum(difference: Difference) -> str:
    """In which factors both sides' sums differ. torch's array counts among the terms only if the others do not tell: torch may
    have handed it on as it was."""
    made, every = difference.made.before, difference.evidence.before
    says = factors_apart(made, difference)
    return says if says or len(made) == len(every) else factors_apart(every, difference)


def factors_apart(before: Mapping[str, np.ndarray], difference: Difference) -> str:
    """'torch adds 1 times a; jax adds 2 times a', or '' where these do not add up to both sides."""
    arrays = difference.torch, difference.jax
    terms = {name: array for name, array in before.items() if same_but_for_ones(array, arrays[0]) and np.isfinite(array).all()}
    if not terms or not all(np.isfinite(array).all() for array in arrays):
        return ""
    matrix = np.stack([np.broadcast_to(array, arrays[0].shape).ravel() for array in terms.values()], -1)
    wanted = np.stack([array.ravel() for array in arrays], -1)
    if len(np.unique(np.concatenate([matrix, wanted], -1)[:MANY], axis=0)) <= len(terms) + 1:
        return ""  # so many factors fit whatever there is
    factors = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    residual = max(map(distance, (matrix @ factors).T, wanted.T))
    differing = [(name, t, j) for name, (t, j) in zip(terms, np.round(factors, 9) + 0.0, strict=True) if t != j]
    if residual > EXPLAINED or not differing:
        return ""
    sides = [", ".join(f"{values[side]:.9g} times {values[0]}" for values in differing) for side in (1, 2)]
    return f"torch adds {sides[0]}; jax adds {sides[1]} (residual {residual:.0e})"


def same_but_for_ones(array: np.ndarray, other: np.ndarray) -> bool:
    """Whether an array has another one's shape, or is shared along some of its axes, as positions are by all rows."""
    return array.ndim == other.ndim and all(one in (1, many) for one, many in zip(array.shape, other.shape, strict=True))
