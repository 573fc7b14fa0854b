"""Precision: sums, softmax, statistics and losses in float32 or wider, as in torch; and rounding to bfloat16."""

import jax
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float


def wide_dtype(dtype: DTypeLike) -> np.dtype:
    """Return float32, or float64 for float64."""
    return np.promote_types(dtype, np.float32)


def wide(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Cast x to float32 or wider."""
    return x.astype(wide_dtype(x.dtype))


def as_bfloat16(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Round to the precision of bfloat16 in x's own type; of a cast there and back, XLA may leave nothing."""
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)
