"""Losses of the routers of a mixture of experts, in training: experts are to be used evenly, and logits are to stay small."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxformer.config.models import GPTConfig
from jaxformer.nn.precision import wide


def balance_loss(logits: Float[Array, "L B T E"], chosen: int, valid: Bool[Array, "B T"] | None = None) -> Float[Array, ""]:
    """Return E sum_e f_e P_e (Fedus et al. 2021, equation 4) with k = `chosen` experts for each token, k if they are even.

    f_e is the number of choices of expert e per token, P_e its mean probability: both over the tokens of all layers at once,
    as transformers has it, without padding.
    """
    probabilities = jax.nn.softmax(wide(logits))
    experts = jax.lax.top_k(probabilities, chosen)[1]
    choices = jax.nn.one_hot(experts, logits.shape[-1], dtype=probabilities.dtype).sum(-2)
    return logits.shape[-1] * (token_mean(choices, valid) * token_mean(probabilities, valid)).sum()


def z_loss(logits: Float[Array, "L B T E"], valid: Bool[Array, "B T"] | None = None) -> Float[Array, ""]:
    """Return the mean of log(sum(exp(logits)))^2 over the tokens of all layers (Zoph et al. 2022, equation 5)."""
    return token_mean(jnp.square(jax.nn.logsumexp(wide(logits), -1, keepdims=True)), valid)[0]


def router_loss(
    logits: Float[Array, "L B T E"], config: GPTConfig, valid: Bool[Array, "B T"] | None = None
) -> Float[Array, ""]:
    """Return the sum of both losses with the configuration's weights."""
    balance = config.balance_loss * balance_loss(logits, config.experts_per_token, valid)
    return balance + config.router_z_loss * z_loss(logits, valid)


def has_router_loss(config: GPTConfig) -> bool:
    """True if the configuration gives a weight to a loss of routers."""
    return bool(config.balance_loss or config.router_z_loss)


def token_mean(x: Float[Array, "L B T E"], valid: Bool[Array, "B T"] | None) -> Float[Array, " E"]:
    """Average over layers and over tokens that are no padding."""
    if valid is None:
        return x.mean((0, 1, 2))
    counted = valid[None, ..., None].astype(x.dtype)
    return (x * counted).sum((0, 1, 2)) / (len(x) * counted.sum())
