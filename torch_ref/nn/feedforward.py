"""The position-wise feed-forward layer (Vaswani et al. 2017, section 3.3) and its gated form (Shazeer 2020)."""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jaxformer.config.blocks import BlockConfig


def gelu_bloom(x: Tensor) -> Tensor:
    """gelu_tanh with sqrt(2 / pi) rounded to 0.79788456, as in BLOOM."""
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021; Nemotron's)."""
    return F.relu(x).square()


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the sigmoid approximation of gelu (Hendrycks and Gimpel 2016, section 2; CLIP's)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS = {
    "relu": F.relu,
    "relu_squared": relu_squared,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "gelu_bloom": gelu_bloom,
    "quick_gelu": quick_gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
"""Activations by their names in configurations."""


def combine_gate(activation: str, gate: Tensor | None, up: Tensor, limit: float | None) -> Tensor:
    """activation(up), or gated activation(gate) * up; with a limit, activation(min(gate, limit)) * (1 + clamped up)."""
    activate = ACTIVATIONS[activation]
    if gate is None:
        return activate(up)
    if limit is not None:
        gate, up = gate.clamp(max=limit), 1 + up.clamp(-limit, limit)
    return activate(gate) * up


class FeedForward(nn.Module):
    """down(activation(up(x))), or gated down(activation(gate(x)) * up(x)), with dropout before `down`.

    `width` is that of `up`; None: d_ff.
    """

    def __init__(self, config: BlockConfig, width: int | None = None):
        super().__init__()
        self.activation, self.limit = config.activation, config.gate_limit
        self.dropout = nn.Dropout(config.feed_forward_dropout)
        width = config.d_ff if width is None else width
        self.gate = nn.Linear(config.d_model, width, config.feed_forward_bias) if config.gated else None
        self.up = nn.Linear(config.d_model, width, config.feed_forward_bias)
        self.down = nn.Linear(width, config.d_model, config.feed_forward_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate = None if self.gate is None else self.gate(x)
        return self.down(self.dropout(combine_gate(self.activation, gate, self.up(x), self.limit)))
