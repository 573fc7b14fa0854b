"""The position-wise feed-forward layer (Vaswani et al. 2017, section 3.3) and its gated form (Shazeer 2020)."""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jaxformer.config.blocks import BlockConfig


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the sigmoid approximation of gelu (Hendrycks and Gimpel 2016, section 2; CLIP's)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
"""Activations by their names in configurations."""


class FeedForward(nn.Module):
    """down(activation(up(x))), or gated down(activation(gate(x)) * up(x)), with dropout before `down`."""

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.activation = config.activation
        self.dropout = nn.Dropout(config.feed_forward_dropout)
        self.gate = nn.Linear(config.d_model, config.d_ff, config.feed_forward_bias) if config.gated else None
        self.up = nn.Linear(config.d_model, config.d_ff, config.feed_forward_bias)
        self.down = nn.Linear(config.d_ff, config.d_model, config.feed_forward_bias)

    def forward(self, x: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.activation]
        hidden = activation(self.up(x)) if self.gate is None else activation(self.gate(x)) * self.up(x)
        return self.down(self.dropout(hidden))
