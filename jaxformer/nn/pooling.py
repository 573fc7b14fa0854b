"""Pooling: the states of a sentence's tokens -> one vector (Reimers and Gurevych 2019, section 3), padding left out."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.config.sentences import Pooling
from jaxformer.nn.precision import wide


def pool_tokens(states: Float[Array, "B T D"], valid: Bool[Array, "B T"], pooling: Pooling) -> Float[Array, "B D"]:
    """Pool the states of the tokens that are `valid`; a mean of none is 0. Sums are taken in float32 or wider."""
    first = jnp.argmax(valid, 1).astype(jnp.int32)
    if pooling == "cls":
        return jnp.take_along_axis(states, first[:, None, None], 1)[:, 0]
    if pooling == "lasttoken":
        last = valid.shape[1] - 1 - jnp.argmax(valid[:, ::-1], 1)
        return jnp.take_along_axis(states, last[:, None, None], 1)[:, 0]
    if pooling == "max":
        largest = jnp.argmax(jnp.where(valid[..., None], states, -jnp.inf), 1)  # a compiled gradient of max may miss its place
        return jnp.take_along_axis(states, largest[:, None], 1)[:, 0]
    x = wide(states)
    weights = valid.astype(x.dtype)
    if pooling == "weightedmean":
        weights = weights * (1 + jnp.arange(valid.shape[1], dtype=jnp.int32)[None] - first[:, None]).astype(x.dtype)
    total, number = (x * weights[..., None]).sum(1), jnp.maximum(weights.sum(1), 1)[:, None]
    return (total / (jnp.sqrt(number) if pooling == "mean_sqrt_len_tokens" else number)).astype(states.dtype)


def unit_norm(x: Float[Array, "... D"]) -> Float[Array, "... D"]:
    """x / |x|, with a norm of at least 1e-12, as in torch."""
    y = wide(x)
    return (y / jnp.sqrt(jnp.maximum(jnp.square(y).sum(-1, keepdims=True), 1e-24))).astype(x.dtype)
