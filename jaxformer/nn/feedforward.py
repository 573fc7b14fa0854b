"""The position-wise feed-forward layer (Vaswani et al. 2017, section 3.3) and its gated form (Shazeer 2020)."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer.config.blocks import BlockConfig
from jaxformer.nn.dropout import dropout
from jaxformer.nn.linear import Linear


def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x Phi(x), exactly (Hendrycks and Gimpel 2016; torch's default). XLA runs erf faster than jax.nn.gelu's erfc."""
    return 0.5 * x * (1 + jax.lax.erf(x * math.sqrt(0.5)))


def gelu_tanh(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Tanh approximation of gelu (GPT-2's)."""
    return 0.5 * x * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def quick_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x sigmoid(1.702 x), the sigmoid approximation of gelu (Hendrycks and Gimpel 2016, section 2; CLIP's)."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}
"""Activations by their names in configurations."""


class FeedForward(nnx.Module):
    """down(activation(up(x))), or gated down(activation(gate(x)) * up(x)), with dropout before `down`."""

    def __init__(self, config: BlockConfig):
        self.activation = config.activation
        self.dropout_rate = config.feed_forward_dropout
        self.gate = Linear(config.d_model, config.d_ff, config.feed_forward_bias) if config.gated else None
        self.up = Linear(config.d_model, config.d_ff, config.feed_forward_bias)
        self.down = Linear(config.d_ff, config.d_model, config.feed_forward_bias)

    def __call__(self, x: Float[Array, "B T D"], key: PRNGKeyArray | None = None) -> Float[Array, "B T D"]:
        activation = jax.checkpoint(ACTIVATIONS[self.activation])  # made again backwards: less to keep, and to read
        hidden = activation(self.up(x)) if self.gate is None else activation(self.gate(x)) * self.up(x)
        return self.down(dropout(hidden, self.dropout_rate, key))
