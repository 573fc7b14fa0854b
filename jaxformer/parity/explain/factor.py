"""The factor between two arrays."""

import numpy as np

from jaxformer.parity.numerics.metrics import distance


def factor_between(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """c for which c times torch's array is nearest to jax's, by least squares, and how far the two are apart then: relL2."""
    factor = float((ours * theirs).sum() / (np.square(theirs).sum() or 1.0))
    return factor, distance(ours, factor * theirs)
