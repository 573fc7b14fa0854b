"""Token ids -> vectors; and vectors -> logits with the same table."""

import math
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxformer.config.models import ModelConfig
from jaxformer.nn.dropout import dropout
from jaxformer.nn.linear import Linear, matmul
from jaxformer.nn.norms import make_norm
from jaxformer.nn.positions import position_table
from jaxformer.parallel.placement import look_up
from jaxformer.validation.arrays import check_not_torch, check_values


class Embedding(nnx.Module):
    """Table of V vectors; an id without a row gives NaN, where flax's own pins its dtype and wraps negative ids.

    As in torch, looking up `padding_idx` gives its row no gradient; `decode` does.
    """

    def __init__(self, size: int, d_model: int, padding_idx: int | None = None):
        self.padding_idx = padding_idx
        self.table = nnx.Param(jnp.zeros((size, d_model), jnp.float32))

    def encode(self, ids: Int[Array, "*rows"]) -> Float[Array, "*rows D"]:
        """Look up the rows of these ids."""

        def take(ids: Int[Array, "*rows"]) -> Float[Array, "*rows D"]:
            return self.table[...].at[ids].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)

        x = look_up(take, ids, self.table.shape)
        return x if self.padding_idx is None else jnp.where((ids == self.padding_idx)[..., None], jax.lax.stop_gradient(x), x)

    def decode(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows V"]:
        """Return logits: the product of x with every row."""
        return matmul(x, self.table[...].T)


class InputEmbedding(nnx.Module):
    """dropout(norm(token embedding [* multiplier * sqrt(D)] + position [+ token type])).

    The norm is there with `embedding_norm` only; with an `embedding_width`, a linear layer to d_model comes last. With
    `positions_last`, dropout(project(norm(token embedding)) + position [+ token type]). Without a
    vocab_size there is no token embedding: each call is given a shared one. An id or a position without a row gives NaN; there
    are `context` positions. The module can be used alone, with a model's weights:

        config = GPTConfig(vocab_size=30522, context=5000, d_model=64, n_layers=1, n_heads=1, d_ff=0, embedding_dropout=0.1)
        x = GPT(config, rngs=key).embed(ids, jnp.arange(ids.shape[1], dtype=jnp.int32)[None], key=dropout_key)

    It reads these fields of the configuration: context, d_model, positions, position_offset, positions_last, padding_idx, the
    fields that begin with embedding_, and those of the norm.
    """

    def __init__(self, config: ModelConfig, vocab_size: int | None, token_types: int = 0):
        self.positions, self.offset = config.positions, config.position_offset
        self.rows = config.context + config.position_offset
        self.scale = config.embedding_multiplier * (math.sqrt(config.d_model) if config.embedding_scale else 1.0)
        self.dropout_rate = config.embedding_dropout
        width = config.token_width
        self.token = cast(Embedding, None if vocab_size is None else Embedding(vocab_size, width, config.padding_idx))
        self.last, placed = config.positions_last, config.position_width
        self.position = Embedding(self.rows, placed) if config.positions == "learned" else None
        self.token_type = Embedding(token_types, placed) if token_types else None
        self.norm = make_norm(config.norm if config.embedding_norm else "none", config, width)
        self.project = None if config.embedding_width is None else Linear(width, config.d_model, config.embedding_bias)

    def __call__(
        self,
        ids: Int[Array, "B T"],
        positions: Int[Array, "#B T"],
        *,
        token: Embedding | None = None,
        token_types: Int[Array, "#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the vectors of these ids at these positions; without token types, all are of type 0."""
        token = self.token if token is None else token
        check_values(token)
        check_not_torch(positions=positions, token_types=token_types)
        return self.place(token.encode(ids) * self.scale, positions, token_types=token_types, key=key)

    def place(
        self,
        x: Float[Array, "B T _"],
        positions: Int[Array, "#B T"],
        *,
        token_types: Int[Array, "#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the vectors of tokens that are embedded already, as those of a convolution stem, at these positions."""
        positions = positions + self.offset
        x = self._project(self.norm(x)) if self.last else x
        if self.position is not None:
            x = x + self.position.encode(positions)
        elif self.positions != "none":
            table = jnp.asarray(position_table(self.positions, self.rows, x.shape[-1]), x.dtype)
            x = x + table.at[positions].get(mode="fill", fill_value=jnp.nan, wrap_negative_indices=False)
        if self.token_type is not None:
            x = x + self.token_type.encode(jnp.zeros_like(positions) if token_types is None else token_types)
        if self.last:
            return dropout(x, self.dropout_rate, key)
        return self._project(dropout(self.norm(x), self.dropout_rate, key))

    def _project(self, x: Array) -> Array:
        return x if self.project is None else self.project(x)
