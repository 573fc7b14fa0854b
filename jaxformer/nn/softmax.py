"""Softmax over the keys that a query sees, and sinks that join it (Xiao et al. 2024; gpt-oss learns a logit per head)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

WEIGHTS = "attention weights"
"""Name of the weights, for what keeps them for the gradient."""


def masked_softmax(scores: Float[Array, "*rows S"], mask: Bool[Array, "..."] | None) -> Float[Array, "*rows S"]:
    """Softmax over the unmasked keys; a row whose keys are all masked gives zeros, and finite gradients."""
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.full((), -jnp.inf, scores.dtype))
    return softmax(scores)


@jax.custom_jvp
def softmax(scores: Float[Array, "*rows S"]) -> Float[Array, "*rows S"]:
    """exp(scores) over its sum; zeros for a row of -inf. For the gradient the weights alone are kept, as torch does."""
    highest = scores.max(-1, keepdims=True)
    exp_scores = jnp.exp(scores - jnp.where(jnp.isneginf(highest), jnp.zeros_like(highest), highest))
    total = exp_scores.sum(-1, keepdims=True)
    return exp_scores / jnp.where(total == 0, jnp.ones_like(total), total)


@softmax.defjvp
def _softmax_jvp(primals, tangents):
    weights, tangent = checkpoint_name(jax.lax.optimization_barrier(softmax(*primals)), WEIGHTS), tangents[0]
    return weights, weights * (tangent - (weights * tangent).sum(-1, keepdims=True))


class Sinks(nnx.Module):
    """Attention sinks: a learned logit per head that joins the softmax over the keys; its own weight is dropped."""

    def __init__(self, heads: int):
        self.bias = nnx.Param(jnp.zeros(heads, jnp.float32))

    def __call__(self, scores: Float[Array, "B N T S"], mask: Bool[Array, "_ _ _ _"] | None) -> Float[Array, "B N T S"]:
        sinks = jnp.broadcast_to(self.bias[...].astype(scores.dtype)[:, None, None], (*scores.shape[:-1], 1))
        if mask is not None:
            mask = jnp.broadcast_to(mask, (*mask.shape[:-1], scores.shape[-1]))
            mask = jnp.pad(mask, ((0, 0), (0, 0), (0, 0), (0, 1)), constant_values=True)
        return masked_softmax(jnp.concatenate([scores, sinks], -1), mask)[..., :-1]
