"""Rotation of the units of heads by rotary positions."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rotation:
    """Rotation of the first units of each head, in pairs."""

    rates: torch.Tensor
    """Radians a position of each pair."""
    layout: str = "halves"
    """Pairs of units: 'neighbours' (2i and 2i + 1), or others for halves (i and i + width / 2)."""

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate heads `... T H` by positions `... T`."""
        width, angles = 2 * len(self.rates), positions[..., None] * self.rates
        turned, rest = x[..., :width], x[..., width:]
        neighbours = self.layout == "neighbours"
        a, b = (turned[..., ::2], turned[..., 1::2]) if neighbours else turned.chunk(2, -1)
        both = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
        return torch.cat([torch.stack(both, -1).flatten(-2) if neighbours else torch.cat(both, -1), rest], -1)
