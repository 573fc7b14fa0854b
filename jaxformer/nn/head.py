"""Vectors -> logits."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer.nn.embeddings import Embedding
from jaxformer.nn.linear import add_bias
from jaxformer.nn.matmul import matmul


class Head(nnx.Module):
    """scale * x @ kernel + bias; a tied head has no kernel and takes the token embedding's table (Press and Wolf 2017).

    x is scaled, as T5 does it, and not the logits, as Cohere does: they are the same, and no published model has a bias there.
    """

    def __init__(self, d_model: int, vocab_size: int, *, tied: bool, bias: bool, scale: float = 1.0):
        self.scale = scale
        self.kernel = None if tied else nnx.Param(jnp.zeros((d_model, vocab_size), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(vocab_size, jnp.float32)) if bias else None

    def __call__(self, x: Float[Array, "*rows D"], token: Embedding) -> Float[Array, "*rows V"]:
        x = x * self.scale
        y = token.decode(x) if self.kernel is None else matmul(x.astype(self.kernel.dtype), self.kernel[...])
        return y if self.bias is None else add_bias(y, self.bias[...])
