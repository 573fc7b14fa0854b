"""Dropout (Srivastava et al. 2014), inverted: kept units are scaled up in training, so that inference needs no scaling.

The PyTorch twin uses torch.nn.Dropout.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer.runtime import random
from jaxformer.validation.arrays import check_key


def split_key(key: PRNGKeyArray | None, n: int) -> list[PRNGKeyArray | None]:
    """Split a key into n, for n random sites; n times None without a key."""
    check_key("key", key)
    return [None] * n if key is None else list(random.split(key, n))


def dropout(x: Float[Array, "..."], rate: float, key: PRNGKeyArray | None) -> Float[Array, "..."]:
    """Zero units of x at `rate` and divide the rest by 1 - rate; return x itself without a key."""
    if key is None or rate == 0:
        return x
    return jnp.where(random.dropout_mask(key, rate, x.shape), x / (1 - rate), jnp.zeros_like(x))
