"""Dropout (Srivastava et al. 2014), inverted: what is kept is scaled up, so inference needs nothing.

The twin has torch.nn.Dropout.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer.runtime import random
from jaxformer.validation.arrays import check_key


def split_key(key: PRNGKeyArray | None, n: int) -> list[PRNGKeyArray | None]:
    """n keys for n random sites, or n times None."""
    check_key("key", key)
    return [None] * n if key is None else list(random.split(key, n))


def dropout(x: Float[Array, "..."], rate: float, key: PRNGKeyArray | None) -> Float[Array, "..."]:
    """x with units zeroed at `rate` and the rest divided by 1 - rate; x itself without a key."""
    if key is None or rate == 0:
        return x
    return jnp.where(random.dropout_mask(key, rate, x.shape), x / (1 - rate), jnp.zeros_like(x))
