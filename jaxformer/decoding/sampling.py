"""One token from its logits. Every number of a SamplingConfig is traced: no value of them compiles anything anew."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.config.settings import SamplingConfig
from jaxformer.decoding.prepare import real

Number = Float[Array, ""] | Int[Array, ""] | np.generic | float | int
GREEDY = SamplingConfig(temperature=0.0)
"""The likeliest token, always."""
NUMBERS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
"""What of a SamplingConfig `next_tokens` takes, in its order."""


def numbers(sampling: SamplingConfig) -> tuple[np.generic, ...]:
    """The configuration as arguments for `next_tokens`, of the same types whatever it holds."""
    values = ((name, getattr(sampling, name)) for name in NUMBERS)
    return tuple(np.int32(value) if name == "top_k" else real(value) for name, value in values)


def penalise(logits: Float[Array, "B V"], seen: Bool[Array, "B V"], penalty: Number) -> Float[Array, "B V"]:
    """Tokens seen before made less likely: positive logits divided, negative ones multiplied by the penalty."""
    penalty = jnp.asarray(penalty, logits.dtype)
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_k(logits: Float[Array, "B V"], k: Number) -> Float[Array, "B V"]:
    """-inf for all but the k likeliest, and those as likely as the k-th; k = 0 keeps all."""

    def cut(logits):
        place = jnp.minimum(jnp.asarray(k), logits.shape[-1]) - 1
        least = jnp.sort(logits, axis=-1, descending=True)[:, place]
        return jnp.where(logits >= least[:, None], logits, -jnp.inf)

    return jax.lax.cond(jnp.asarray(k) == 0, lambda logits: logits, cut, logits)


def keep_top_p(logits: Float[Array, "B V"], p: Number) -> Float[Array, "B V"]:
    """-inf for all but the smallest set of likeliest tokens whose probabilities reach p; always at least one."""

    def cut(logits):
        ranked = jnp.sort(logits, axis=-1, descending=True)
        probabilities = jax.nn.softmax(ranked, axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        inside = (before < jnp.asarray(p, before.dtype)) | (jnp.arange(logits.shape[-1])[None] == 0)
        return jnp.where(logits >= jnp.where(inside, ranked, jnp.inf).min(-1, keepdims=True), logits, -jnp.inf)

    return jax.lax.cond(jnp.asarray(p) >= 1, lambda logits: logits, cut, logits)


def keep_min_p(logits: Float[Array, "B V"], p: Number) -> Float[Array, "B V"]:
    """-inf for tokens of less than p times the likeliest one's probability."""
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
    """A sample from softmax(logits / temperature) among the tokens that every rule keeps; the argmax at temperature 0."""
    logits = penalise(logits, seen, repetition_penalty)

    def sample(logits):
        scaled = (logits - logits.max(-1, keepdims=True)) / jnp.asarray(temperature, logits.dtype)
        kept = keep_min_p(keep_top_p(keep_top_k(scaled, top_k), top_p), min_p)
        return jax.random.categorical(key, kept, axis=-1).astype(jnp.int32)

    return jax.lax.cond(jnp.asarray(temperature) == 0, lambda logits: logits.argmax(-1).astype(jnp.int32), sample, logits)
