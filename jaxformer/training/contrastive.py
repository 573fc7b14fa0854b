"""Losses of a dual encoder, of the logits of every pair of B images and their B texts: row i and column i belong together."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxformer.nn.precision import wide


def softmax_contrastive_loss(logits: Float[Array, "B B"]) -> Float[Array, ""]:
    """Mean of the cross-entropy of each image among the texts, and of each text among the images (Radford et al. 2021)."""
    x = wide(logits)
    return -(jnp.diagonal(jax.nn.log_softmax(x, 1)).mean() + jnp.diagonal(jax.nn.log_softmax(x, 0)).mean()) / 2


def sigmoid_contrastive_loss(logits: Float[Array, "B B"]) -> Float[Array, ""]:
    """Cross-entropy of each pair by itself, of one class if it belongs together: the sum divided by B (Zhai et al. 2023)."""
    x = wide(logits)
    together = jnp.eye(x.shape[0], dtype=bool)
    return -jax.nn.log_sigmoid(jnp.where(together, x, -x)).sum() / x.shape[0]
