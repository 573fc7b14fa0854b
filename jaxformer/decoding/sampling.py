"""Sampling of one token from its logits. Every number of a SamplingConfig is traced: a new value needs no compilation."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.config.settings import SamplingConfig
from jaxformer.decoding.prepare import real

Number = Float[Array, ""] | Int[Array, ""] | np.generic | float | int
GREEDY = SamplingConfig(temperature=0.0)
"""Greedy decoding: always the likeliest token."""
NUMBERS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
"""Fields of a SamplingConfig that `next_tokens` takes, in its order."""


def numbers(sampling: SamplingConfig) -> tuple[np.generic, ...]:
    """Convert the configuration to arguments for `next_tokens`, of the same dtypes whatever the values."""
    values = ((name, getattr(sampling, name)) for name in NUMBERS)
    return tuple(np.int32(value) if name == "top_k" else real(value) for name, value in values)


def penalise(logits: Float[Array, "B V"], seen: Bool[Array, "B V"], penalty: Number) -> Float[Array, "B V"]:
    """Make tokens seen before less likely: divide positive logits by the penalty, and multiply negative ones by it."""
    penalty = jnp.asarray(penalty, logits.dtype)
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_k(logits: Float[Array, "B V"], k: Number) -> Float[Array, "B V"]:
    """Set to -inf all but the k likeliest tokens and those as likely as the k-th; k = 0 keeps all."""

    def cut(logits):
        place = jnp.minimum(jnp.asarray(k), logits.shape[-1]) - 1
        least = jnp.sort(logits, axis=-1, descending=True)[:, place]
        return jnp.where(logits >= least[:, None], logits, -jnp.inf)

    return jax.lax.cond(jnp.asarray(k) == 0, lambda logits: logits, cut, logits)


def keep_top_p(logits: Float[Array, "B V"], p: Number) -> Float[Array, "B V"]:
    """Set to -inf all but the smallest set of likeliest tokens whose probabilities reach p; keeps at least one."""

    def cut(logits):
        ranked = jnp.sort(logits, axis=-1, descending=True)
        probabilities = jax.nn.softmax(ranked, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        inside = (before < jnp.asarray(p, before.dtype)) | (jnp.arange(logits.shape[-1])[None] == 0)
        return jnp.where(logits >= jnp.where(inside, ranked, jnp.inf).min(-1, keepdims=True), logits, -jnp.inf)

    return jax.lax.cond(jnp.asarray(p) >= 1, lambda logits: logits, cut, logits)


def keep_min_p(logits: Float[Array, "B V"], p: Number) -> Float[Array, "B V"]:
    """Set to -inf tokens of less than p times the likeliest token's probability."""
    least = logits.max(-1, keepdims=True) + jnp.log(jnp.asarray(p, logits.dtype))
    return jnp.where(logits >= least, logits, -jnp.inf)


def next_tokens(
    logits: Float[Array, "B V"],
    seen: Bool[Array, "B V"],
    key: PRNGKeyArray,
    repetition_penalty: Number,
    temperature: Number,
    top_k: Number,
    top_p: Number,
    min_p: Number,
) -> Int[Array, " B"]:
    """Sample from softmax(logits / temperature) among the tokens that every rule keeps; at temperature 0 take the argmax."""
    logits = penalise(logits, seen, repetition_penalty)

    def sample(logits):
        scaled = (logits - logits.max(-1, keepdims=True)) / jnp.asarray(temperature, logits.dtype)
        kept = keep_min_p(keep_top_p(keep_top_k(scaled, top_k), top_p), min_p)
        return jax.random.categorical(key, kept, axis=-1).astype(jnp.int32)

    return jax.lax.cond(jnp.asarray(temperature) == 0, lambda logits: logits.argmax(-1).astype(jnp.int32), sample, logits)
