"""Per-layer embeddings (Gemma 3n, Gemma 4): every layer reads an embedding of its own of each token, through a gate."""

import math

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.models import GPTConfig
from jaxformer.nn.embeddings import Embedding
from jaxformer.nn.feedforward import ACTIVATIONS
from jaxformer.nn.linear import Linear
from jaxformer.nn.norms import make_norm


class LayerEmbedding(nnx.Module):
    """(norm(projection of x / sqrt(D)) + token embedding * sqrt(P)) / sqrt(2): an embedding of width P of each token and layer.

    `x` is what the first layer reads. The table has the embeddings of all layers side by side.
    """

    def __init__(self, config: GPTConfig):
        self.n_layers, self.width = config.n_layers, config.layer_embedding
        self.token = Embedding(config.vocab_size, self.n_layers * self.width, config.padding_idx)
        self.projection = Linear(config.d_model, self.n_layers * self.width, False)
        self.norm = make_norm(config.norm, config, self.width)

    def __call__(self, ids: Int[Array, "B T"], x: Float[Array, "B T D"]) -> Float[Array, "L B T P"]:
        projected, own = (self._by_layer(it) for it in (self.projection(x) * x.shape[-1] ** -0.5, self.token.encode(ids)))
        return jnp.moveaxis((self.norm(projected) + own * math.sqrt(self.width)) * 2**-0.5, -2, 0)

    def _by_layer(self, x: Float[Array, "B T LP"]) -> Float[Array, "B T L P"]:
        return x.reshape(*x.shape[:-1], self.n_layers, self.width)


class LayerInput(nnx.Module):
    """norm(up(activation(gate(x)) * embedding)), which a block adds to x, its output."""

    def __init__(self, config: BlockConfig):
        self.activation = config.activation
        self.gate = Linear(config.d_model, config.layer_embedding, False)
        self.up = Linear(config.layer_embedding, config.d_model, False)
        self.norm = make_norm(config.norm, config)

    def __call__(self, x: Float[Array, "B T D"], embedding: Float[Array, "B T P"]) -> Float[Array, "B T D"]:
        return self.norm(self.up(ACTIVATIONS[self.activation](self.gate(x)) * embedding))
