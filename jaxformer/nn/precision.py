"""Wide dtypes for sums: softmax, statistics and losses are computed in float32 or wider, as torch's own functions do."""

import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def wide_dtype(dtype: DTypeLike) -> np.dtype:
    """Return float32, or float64 for float64."""
    return np.promote_types(dtype, np.float32)


def wide(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Cast x to float32 or wider."""
    return x.astype(wide_dtype(x.dtype))
