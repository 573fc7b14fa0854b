"""Per-layer embeddings (Gemma 3n, Gemma 4): every layer reads an embedding of its own of each token, through a gate."""

import math

from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.models import GPTConfig
from torch_ref.nn.embeddings import Embedding
from torch_ref.nn.feedforward import ACTIVATIONS
from torch_ref.nn.norms import make_norm


class LayerEmbedding(nn.Module):
    """(norm(projection of x / sqrt(D)) + token embedding * sqrt(P)) / sqrt(2): an embedding of width P of each token and layer,
    `L B T P`.

    `x` is what the first layer reads. The table has the embeddings of all layers side by side.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.n_layers, self.width = config.n_layers, config.layer_embedding
        self.token = Embedding(config.vocab_size, self.n_layers * self.width, config.padding_idx)
        self.projection = nn.Linear(config.d_model, self.n_layers * self.width, bias=False)
        self.norm = make_norm(config.norm, config, self.width)

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        projected, own = (self._by_layer(it) for it in (self.projection(x) * x.shape[-1] ** -0.5, self.token.encode(ids)))
        return ((self.norm(projected) + own * math.sqrt(self.width)) * 2**-0.5).movedim(-2, 0)

    def _by_layer(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_layers, self.width))


class LayerInput(nn.Module):
    """norm(up(activation(gate(x)) * embedding)), which a block adds to x, its output."""

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.activation = config.activation
        self.gate = nn.Linear(config.d_model, config.layer_embedding, bias=False)
        self.up = nn.Linear(config.layer_embedding, config.d_model, bias=False)
        self.norm = make_norm(config.norm, config)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.norm(self.up(ACTIVATIONS[self.activation](self.gate(x)) * embedding))
