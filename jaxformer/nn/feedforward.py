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


def gelu_bloom(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """gelu_tanh with sqrt(2 / pi) rounded to 0.79788456, as in BLOOM: up to 1e-9 of x away."""
    return 0.5 * x * (1 + jnp.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def relu_squared(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """max(x, 0)^2 (So et al. 2021; Nemotron's)."""
    return jnp.square(jax.nn.relu(x))


def quick_gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x sigmoid(1.702 x), the sigmoid approximation of gelu (Hendrycks and Gimpel 2016, section 2; CLIP's)."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "relu_squared": relu_squared,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_bloom": gelu_bloom,
    "quick_gelu": quick_gelu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}
"""Activations by their names in configurations."""


def clamp(x: Float[Array, "..."], limit: float) -> Float[Array, "..."]:
    """x, at most limit away from 0; at the limit itself the gradient is 1, as in torch."""
    return jnp.where(jnp.abs(x) > limit, jnp.sign(x) * limit, x)


def combine_gate(
    activation: str, gate: Float[Array, "*rows F"] | None, up: Float[Array, "*rows F"], limit: float | None
) -> Float[Array, "*rows F"]:
    """activation(up), or gated activation(gate) * up; with a limit, activation(min(gate, limit)) * (1 + clamped up)."""
    if gate is None:
        return ACTIVATIONS[activation](up)
    if limit is not None:  # at the limit itself the gradient is 1, as in torch
        gate, up = jnp.where(gate > limit, limit, gate), 1 + clamp(up, limit)
    return ACTIVATIONS[activation](gate) * up


class FeedForward(nnx.Module):
    """down(activation(up(x))), or gated down(activation(gate(x)) * up(x)), with dropout before `down`.

    `width` is that of `up`; None: d_ff.
    """

    def __init__(self, config: BlockConfig, width: int | None = None):
        self.activation, self.limit = config.activation, config.gate_limit
        self.dropout_rate = config.feed_forward_dropout
        width = config.d_ff if width is None else width
        self.gate = Linear(config.d_model, width, config.feed_forward_bias) if config.gated else None
        self.up = Linear(config.d_model, width, config.feed_forward_bias)
        self.down = Linear(width, config.d_model, config.feed_forward_bias)

    def __call__(self, x: Float[Array, "B T D"], key: PRNGKeyArray | None = None) -> Float[Array, "B T D"]:
        @jax.checkpoint  # what `down` reads is made again backwards, in place of being kept
        def down(gate: Array | None, up: Array, key: PRNGKeyArray | None) -> Array:
            return self.down(dropout(combine_gate(self.activation, gate, up, self.limit), self.dropout_rate, key))

        return down(None if self.gate is None else self.gate(x), self.up(x), key)
