"""Dropout (Srivastava et al. 2014), inverted: what is kept is scaled up, so inference needs nothing.

The twin has torch.nn.Dropout.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

RESOLUTION = 2**16
"""Two decisions share one 32-bit word: half the random bits, and a rate exact to 1/131072."""


def split_key(key: PRNGKeyArray | None, n: int) -> list[PRNGKeyArray | None]:
    """n keys for n random sites, or n times None."""
    return [None] * n if key is None else list(jax.random.split(key, n))


def keep_mask(key: PRNGKeyArray, rate: float, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """True where a unit is kept: independently with probability 1 - rate."""
    size = math.prod(shape)
    words = jax.random.bits(key, ((size + 1) // 2,), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(words, jnp.uint16).reshape(-1)[:size]
    return halves.reshape(shape) >= jnp.uint16(round(rate * RESOLUTION))


def dropout(x: Float[Array, "..."], rate: float, key: PRNGKeyArray | None) -> Float[Array, "..."]:
    """x with units zeroed at `rate` and the rest divided by 1 - rate; x itself without a key."""
    if key is None or rate == 0:
        return x
    return jnp.where(keep_mask(key, rate, x.shape), x / (1 - rate), jnp.zeros_like(x))
