"""Token ids -> vectors, and vectors -> logits with the same table."""

import math

from torch import Tensor, nn

from jaxformer.config import GPTConfig
from torch_ref.nn.positions import sinusoid


class Embedding(nn.Embedding):
    """A table of V vectors; an id without a row raises IndexError."""

    def encode(self, ids: Tensor) -> Tensor:
        """The rows of these ids."""
        return self(ids)

    def decode(self, x: Tensor) -> Tensor:
        """Logits: the product with every row."""
        return x @ self.weight.T


class InputEmbedding(nn.Module):
    """dropout(token embedding [* sqrt(D)] + position)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.positions, self.context = config.positions, config.context
        self.scale = math.sqrt(config.d_model) if config.embedding_scale else 1.0
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.token = Embedding(config.vocab_size, config.d_model)
        self.position = Embedding(config.context, config.d_model) if config.positions == "learned" else None

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.token.encode(ids) * self.scale
        if self.position is not None:
            x = x + self.position.encode(positions)
        elif self.positions == "sinusoid":
            x = x + sinusoid(self.context, x.shape[-1]).to(x.dtype)[positions]
        return self.dropout(x)
