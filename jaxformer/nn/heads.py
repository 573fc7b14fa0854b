"""Heads of encoders: states -> the logits of a task (Devlin et al. 2019, sections 3.1 and 4)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer.config.models import EncoderConfig
from jaxformer.nn.dropout import dropout
from jaxformer.nn.embeddings import Embedding
from jaxformer.nn.feedforward import ACTIVATIONS
from jaxformer.nn.linear import Linear, add_bias
from jaxformer.nn.norms import make_norm


class ClassificationHead(nnx.Module):
    """output(dropout(x)): logits of the labels, or of an answer's start and end."""

    def __init__(self, config: EncoderConfig):
        self.dropout_rate = config.head_dropout
        self.output = Linear(config.d_model, config.n_logits, True)

    def __call__(
        self, x: Float[Array, "*rows D"], token: Embedding, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*rows C"]:
        return self.output(dropout(x, self.dropout_rate, key))


class MaskedLMHead(nnx.Module):
    """norm(activation(dense(x))) @ table.T + bias: logits of each place's token, with the token embedding's table."""

    def __init__(self, config: EncoderConfig):
        self.activation = config.activation if config.head_activation is None else config.head_activation
        self.dense = Linear(config.d_model, config.token_width, True)
        self.norm = make_norm(config.norm, config, config.token_width)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32))

    def __call__(
        self, x: Float[Array, "*rows D"], token: Embedding, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*rows V"]:
        x = self.norm(ACTIVATIONS[self.activation](self.dense(x)))
        return add_bias(token.decode(x), self.bias[...])


def make_head(config: EncoderConfig) -> ClassificationHead | MaskedLMHead | None:
    """Build the head of a configuration; None without one."""
    if config.head == "none":
        return None
    return MaskedLMHead(config) if config.head == "masked_lm" else ClassificationHead(config)
