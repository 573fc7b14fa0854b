"""One token from its logits. Temperature, k and p are traced numbers: no value of them compiles anything anew."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

Number = Float[Array, ""] | Int[Array, ""] | float | int


def keep_top_k(logits: Float[Array, "B V"], k: Number) -> Float[Array, "B V"]:
    """-inf for all but the k likeliest, and those as likely as the k-th; k = 0 keeps all."""
    size = logits.shape[-1]
    place = jnp.where(jnp.asarray(k) == 0, size, jnp.minimum(k, size)) - 1
    least = jnp.sort(logits, axis=-1, descending=True)[:, place]
    return jnp.where(logits >= least[:, None], logits, -jnp.inf)


def keep_top_p(logits: Float[Array, "B V"], p: Number) -> Float[Array, "B V"]:
    """-inf for all but the smallest set of likeliest tokens whose probabilities reach p; always at least one."""
    ranked = jnp.sort(logits, axis=-1, descending=True)
    probabilities = jax.nn.softmax(ranked, axis=-1)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    least = jnp.where((before < jnp.asarray(p, before.dtype)) | (jnp.arange(logits.shape[-1])[None] == 0), ranked, jnp.inf).min(
        -1
    )
    return jnp.where(logits >= least[:, None], logits, -jnp.inf)


def next_tokens(
    logits: Float[Array, "B V"], key: PRNGKeyArray, temperature: Number, top_k: Number, top_p: Number
) -> Int[Array, " B"]:
    """A sample from softmax(logits / temperature) among what top-k and then top-p keep; the argmax at temperature 0."""
    divisor = jnp.where(jnp.asarray(temperature) == 0, 1, temperature)
    scaled = (logits - logits.max(-1, keepdims=True)) / jnp.asarray(divisor, logits.dtype)
    kept = keep_top_p(keep_top_k(scaled, top_k), top_p)
    sampled = jax.random.categorical(key, kept, axis=-1)
    return jnp.where(jnp.asarray(temperature) == 0, logits.argmax(-1), sampled).astype(jnp.int32)
