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
    factor, residual = factor_between(ours, theirs)
    if residual <= EXPLAINED < abs(factor - 1):
        return f"jax's gradient is {factor:.9g} times torch's (residual {residual:.0e})"
    rows = tuple(range(1, ours.ndim))
    for side, array, name, other in (("jax", ours, "torch", theirs), ("torch", theirs, "jax", ours)):
        empty = np.asarray(~array.any(rows) & other.any(rows))
        if empty.any() and distance(ours[~empty], theirs[~empty]) <= EXPLAINED:
            says = f"{side}'s gradient is 0 in {part_of(empty, 'rows') or 'all rows'}, where {name}'s is not"
            return f"{says}: as torch's padding_idx has it" if side == "torch" and empty.sum() == 1 and ours.ndim == 2 else says
    return ""
