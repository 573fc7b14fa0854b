"""Which units dropout keeps. A comparison takes the place of this function, so that both frameworks drop the same units."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

RESOLUTION = 2**16
"""Two decisions share one 32-bit word: half the random bits, and a rate exact to 1/131072."""


def keep_mask(key: PRNGKeyArray, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """True where a unit is kept: independently with probability 1 - rate."""
    size = math.prod(shape)
    words = jax.random.bits(key, ((size + 1) // 2,), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[:size]
    return halves.reshape(shape) >= jnp.uint16(round(rate * RESOLUTION))
