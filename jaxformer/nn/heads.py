"""Heads: states -> logits, of the next token or of a task (Devlin et al. 2019, sections 3.1 and 4)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.nn.dropout import dropout
from jaxformer.nn.embeddings import Embedding
from jaxformer.nn.feedforward import ACTIVATIONS
from jaxformer.nn.linear import Linear, add_bias, multiply
from jaxformer.nn.norms import make_norm


class HeadTransform(nnx.Module):
    """norm(activation(dense(x))), between the states and the layer of the logits."""

    def __init__(self, config: GPTConfig | EncoderConfig, width: int):
        self.activation = config.activation if config.head_activation is None else config.head_activation
        self.dense = Linear(config.d_model, width, config.head_dense_bias)
        self.norm = make_norm(config.norm, config, width)

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows _"]:
        return self.norm(ACTIVATIONS[self.activation](self.dense(x)))


class Head(nnx.Module):
    """scale * [transform] x @ kernel + bias, optionally soft-capped; a tied head has no kernel and uses the token embedding's
    table (Press and Wolf 2017), behind a linear layer to its width if that is not d_model.

    The scale multiplies x, as in T5, and not the logits, as in Cohere: these differ only with a bias, and no published model
    has a bias there.
    """

    def __init__(self, config: GPTConfig | EncoderDecoderConfig):
        self.scale, self.softcap = config.logits_scale, config.logits_softcap
        self.transform = (
            HeadTransform(config, config.d_model) if isinstance(config, GPTConfig) and config.head_transform else None
        )
        shape = config.d_model, config.vocab_size
        narrow = config.tied and config.token_width != config.d_model
        self.project = Linear(config.d_model, config.token_width, False) if narrow else None
        self.kernel = None if config.tied else nnx.Param(jnp.zeros(shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32)) if config.head_bias else None

    def __call__(self, x: Float[Array, "*rows D"], token: Embedding) -> Float[Array, "*rows V"]:
        x = (x if self.transform is None else self.transform(x)) * self.scale
        x = x if self.project is None else self.project(x)
        y = token.decode(x) if self.kernel is None else multiply(x, self.kernel)
        y = y if self.bias is None else add_bias(y, self.bias[...])
        return y if self.softcap is None else self.softcap * jnp.tanh(y / self.softcap)


class ClassificationHead(nnx.Module):
    """output(dropout([transform] x)): logits of the labels, or of an answer's start and end."""

    def __init__(self, config: EncoderConfig):
        self.dropout_rate = config.head_dropout
        self.transform = HeadTransform(config, config.d_model) if config.head_transform else None
        self.output = Linear(config.d_model, config.n_logits, True)

    def __call__(
        self, x: Float[Array, "*rows D"], token: Embedding, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*rows C"]:
        x = x if self.transform is None else self.transform(x)
        return self.output(dropout(x, self.dropout_rate, key))


class MaskedLMHead(nnx.Module):
    """transform(x) @ table.T + bias: logits of each place's token, with the token embedding's table."""

    def __init__(self, config: EncoderConfig):
        self.transform = HeadTransform(config, config.token_width)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32))

    def __call__(
        self, x: Float[Array, "*rows D"], token: Embedding, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*rows V"]:
        return add_bias(token.decode(self.transform(x)), self.bias[...])


def make_head(config: EncoderConfig) -> ClassificationHead | MaskedLMHead | None:
    """Build the head of an encoder; None without one."""
    if config.head == "none":
        return None
    return MaskedLMHead(config) if config.head == "masked_lm" else ClassificationHead(config)
