"""What is said of a JAX tensor that is none of torch's: which of them it nearly is, and how far off."""

from collections.abc import Mapping

import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.axes import aligned
from jaxformer.parity.measure import difference

ALIKE = 0.5
"""Two arrays that have nothing to do with each other are a relL2 of 1 apart, or more."""


def nearly(array: np.ndarray, free: Mapping[str, np.ndarray]) -> str:
    """'; its values are torch's o.bias but for relL2 1.0e-02', or '' where no tensor that is free is plainly meant."""
    apart = {}
    for name, other in free.items():
        try:
            apart[name] = difference("", array, aligned(other, array)).relative
        except ParityError:  # another shape
            continue
    first, second = [*sorted(apart, key=lambda name: apart[name]), "", ""][:2]
    if not first or apart[first] > ALIKE * min(1.0, apart.get(second, 1.0)):
        return ""
    return f"; its values are torch's {first} but for relL2 {apart[first]:.1e}"
