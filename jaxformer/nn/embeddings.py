"""Token ids -> vectors, and vectors -> logits with the same table."""

import math

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxformer.config import GPTConfig
from jaxformer.nn.dropout import dropout
from jaxformer.nn.matmul import matmul
from jaxformer.nn.positions import sinusoid


class Embedding(nnx.Module):
    """A table of V vectors. flax's own pins its dtype and wraps negative ids; here an id without a row gives NaN."""

    def __init__(self, size: int, d_model: int):
        self.table = nnx.Param(jnp.zeros((size, d_model), jnp.float32))

    def encode(self, ids: Int[Array, "*rows"]) -> Float[Array, "*rows D"]:
        """The rows of these ids."""
        return self.table[...].at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)

    def decode(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Logits: the product with every row."""
        return matmul(x, self.table[...].T)


class InputEmbedding(nnx.Module):
    """dropout(token embedding [* sqrt(D)] + position)."""

    def __init__(self, config: GPTConfig):
        self.positions, self.context = config.positions, config.context
        self.scale = math.sqrt(config.d_model) if config.embedding_scale else 1.0
        self.dropout_rate = config.embedding_dropout
        self.token = Embedding(config.vocab_size, config.d_model)
        self.position = Embedding(config.context, config.d_model) if config.positions == "learned" else None

    def __call__(
        self, ids: Int[Array, "B T"], positions: Int[Array, "#B T"], key: PRNGKeyArray | None = None
    ) -> Float[Array, "B T D"]:
        x = self.token.encode(ids) * self.scale
        if self.position is not None:
            x = x + self.position.encode(positions)
        elif self.positions == "sinusoid":
            table = jnp.asarray(sinusoid(self.context, x.shape[-1]), x.dtype)
            x = x + table.at[positions].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        return dropout(x, self.dropout_rate, key)
