"""Vectors -> logits."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_ref.nn.embeddings import Embedding


class Head(nn.Module):
    """scale * x @ weight.T + bias; a tied head has no weight and takes the token embedding's table (Press and Wolf 2017)."""

    def __init__(self, d_model: int, vocab_size: int, *, tied: bool, bias: bool, scale: float = 1.0):
        super().__init__()
        self.scale = scale
        self.weight = None if tied else nn.Parameter(torch.zeros(vocab_size, d_model))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(self, x: Tensor, token: Embedding) -> Tensor:
        return F.linear(x * self.scale, token.weight if self.weight is None else self.weight, self.bias)
