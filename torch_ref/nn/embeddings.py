"""Token ids -> vectors; and vectors -> logits with the same table."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from jaxformer.config.models import ModelConfig
from torch_ref.nn.norms import make_norm
from torch_ref.nn.positions import position_table


class Embedding(nn.Embedding):
    """Table of V vectors; an id without a row raises IndexError, and looking up `padding_idx` gives its row no gradient."""

    def encode(self, ids: Tensor) -> Tensor:
        """Look up the rows of these ids."""
        return self(ids)

    def decode(self, x: Tensor) -> Tensor:
        """Return logits: the product of x with every row."""
        return x @ self.weight.T


class InputEmbedding(nn.Module):
    """dropout(norm(token embedding [* multiplier * sqrt(D)] + position [+ token type])).

    The norm is there with `embedding_norm` only; with an `embedding_width`, a linear layer to d_model comes last. With
    `positions_last`, dropout(project(norm(token embedding)) + position [+ token type]). Without a
    vocab_size there is no token embedding: each call is given a shared one.
    """

    def __init__(self, config: ModelConfig, vocab_size: int | None, token_types: int = 0):
        super().__init__()
        self.positions, self.offset = config.positions, config.position_offset
        self.rows = config.context + config.position_offset
        self.scale = config.embedding_multiplier * (math.sqrt(config.d_model) if config.embedding_scale else 1.0)
        self.dropout = nn.Dropout(config.embedding_dropout)
        width = config.token_width
        self.token = cast(Embedding, None if vocab_size is None else Embedding(vocab_size, width, config.padding_idx))
        self.last, placed = config.positions_last, config.position_width
        self.position = Embedding(self.rows, placed) if config.positions == "learned" else None
        self.token_type = Embedding(token_types, placed) if token_types else None
        self.norm = make_norm(config.norm if config.embedding_norm else "none", config, width)
        self.project = None if config.embedding_width is None else nn.Linear(width, config.d_model, config.embedding_bias)

    def forward(
        self, ids: Tensor, positions: Tensor, *, token: Embedding | None = None, token_types: Tensor | None = None
    ) -> Tensor:
        """Return the vectors of these ids at these positions; without token types, all are of type 0."""
        x = (self.token if token is None else token).encode(ids) * self.scale
        return self.place(x, positions, token_types=token_types)

    def place(self, x: Tensor, positions: Tensor, *, token_types: Tensor | None = None) -> Tensor:
        """Return the vectors of tokens that are embedded already, as those of a convolution stem, at these positions."""
        positions = positions + self.offset
        x = self._project(self.norm(x)) if self.last else x
        if self.position is not None:
            x = x + self.position.encode(positions)
        elif self.positions != "none":
            x = x + position_table(self.positions, self.rows, x.shape[-1]).to(x.dtype)[positions]
        if self.token_type is not None:
            x = x + self.token_type.encode(torch.zeros_like(positions) if token_types is None else token_types)
        if self.last:
            return self.dropout(x)
        return self._project(self.dropout(self.norm(x)))

    def _project(self, x: Tensor) -> Tensor:
        return x if self.project is None else self.project(x)
