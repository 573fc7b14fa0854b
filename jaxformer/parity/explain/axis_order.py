"""Axes that are given in another order."""

import numpy as np

from jaxformer.parity.numerics.axis_order import orders_for, to_jax_axes
from jaxformer.parity.numerics.metrics import EXPLAINED, distance


def explain_turned(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Where ours is torch's array with its axes in another order."""
    for order in orders_for(theirs.shape, ours.shape)[1:]:
        if (residual := distance(to_jax_axes(theirs, order, ours.shape), ours)) <= EXPLAINED:
            return f"jax gives torch's axes in the order {', '.join(map(str, order))} (residual {residual:.0e})"
    return ""
