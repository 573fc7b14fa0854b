"""Output head: vectors -> logits."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.nn.embeddings import Embedding
from jaxformer.nn.linear import add_bias
from jaxformer.nn.matmul import matmul


class Head(nnx.Module):
    """scale * x @ kernel + bias, optionally soft-capped; a tied head has no kernel and uses the token embedding's table (Press
    and Wolf 2017).

    The scale multiplies x, as in T5, and not the logits, as in Cohere: these differ only with a bias, and no published model
    has a bias there.
    """

    def __init__(self, config: GPTConfig | EncoderDecoderConfig):
        self.scale, self.softcap = config.logits_scale, config.logits_softcap
        shape = config.d_model, config.vocab_size
        self.kernel = None if config.tied else nnx.Param(jnp.zeros(shape, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(config.vocab_size, jnp.float32)) if config.head_bias else None

    def __call__(self, x: Float[Array, "*rows D"], token: Embedding) -> Float[Array, "*rows V"]:
        x = x * self.scale
        y = token.decode(x) if self.kernel is None else matmul(x.astype(self.kernel.dtype), self.kernel[...])
        y = y if self.bias is None else add_bias(y, self.bias[...])
        return y if self.softcap is None else self.softcap * jnp.tanh(y / self.softcap)
