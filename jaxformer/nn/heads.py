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


class HeadTransform(nnx.Module):
    """norm(activation(dense(x))), between the states and the layer of the logits."""

    def __init__(self, config: EncoderConfig):
        self.activation = config.activation if config.head_activation is None else config.head_activation
        self.dense = Linear(config.d_model, config.transform_width, config.head_dense_bias)
        self.norm = make_norm(config.norm, config, config.transform_width)

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows _"]:
        return self.norm(ACTIVATIONS[self.activation](self.dense(x)))


class ClassificationHead(nnx.Module):
    """output(dropout([transform] x)): logits of the labels, or of an answer's start and end."""

    def __init__(self, config: EncoderConfig):
        self.dropout_rate = config.head_dropout
        self.transform = HeadTransform(config) if config.head_transform else None
        self.output = Linear(config.d_model, config.n_logits, True)

    def __call__(
        self, x: Float[Array, "*rows D"], token: Embedding, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*rows C"]:
        x = x if self.transform is None else self.transform(x)
        return self.output(dropout(x, self.dropout_rate, key))


class MaskedLMHead(nnx.Module):
    """transform(x) @ table.T + bias: logits of each place's token, with the token embedding's table."""

    def __init__(self, config: EncoderConfig):
        self.transform = HeadTransform(config)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32))

    def __call__(
        self, x: Float[Array, "*rows D"], token: Embedding, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*rows V"]:
        return add_bias(token.decode(self.transform(x)), self.bias[...])


def make_head(config: EncoderConfig) -> ClassificationHead | MaskedLMHead | None:
    """Build the head of a configuration; None without one."""
    if config.head == "none":
        return None
    return MaskedLMHead(config) if config.head == "masked_lm" else ClassificationHead(config)
