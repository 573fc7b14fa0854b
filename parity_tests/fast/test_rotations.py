"""Causes in what is rotated, and in which units are pairs, in code without taps."""

import pytest
import torch
from torch import nn

from jaxformer.parity.diagnose.operators.rotary_heads import Rotation
from jaxformer.parity.diagnose.rotary_rates import plain_rates
from parity_tests.support.searches import cause_between
from parity_tests.zoo.programs import H, N, Rotary, T, X


def rotated(module, given, values):
    """Rotate values `B T (N H)` by their positions."""
    heads = values.unflatten(-1, (N, H)).transpose(1, 2)
    return Rotation(plain_rates(H, 10000.0))(heads, torch.arange(T)).transpose(1, 2).flatten(2)


def test_values_that_are_rotated():
    port = Rotary()
    port.v.register_forward_hook(rotated)
    cause = cause_between(Rotary(), port, X, tapped=False)
    assert "torch rotates queries and keys alone at `scores.softmax(-1)` (programs.py:48); jax rotates values too" in cause


class Neighbours(nn.Module):
    """Attention of normed queries and keys, with tables that hold each rate once."""

    def __init__(self):
        super().__init__()
        self.three, self.norm = nn.Linear(N * H, 3 * N * H), nn.RMSNorm(H, eps=1e-6)

    def forward(self, x):
        angles = torch.arange(T, dtype=x.dtype)[:, None] * plain_rates(H, 10000.0).to(x.dtype)
        q, k, v = (each.unflatten(-1, (N, H)).transpose(1, 2) for each in self.three(x).chunk(3, -1))
        q, k = (self.turn(self.norm(each), angles.cos(), angles.sin()) for each in (q, k))
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)

    def turn(self, x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Halves(Neighbours):
    def turn(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


@pytest.mark.parametrize(
    ("torchs", "jaxs", "words"),
    [
        (Neighbours, Halves, "torch has rotary pairs interleaved; jax has them half and half ("),
        (Halves, Neighbours, "torch has rotary pairs half and half; jax has them interleaved ("),
    ],
)
def test_other_pairs_of_tables_with_each_rate_once(torchs, jaxs, words):
    assert cause_between(torchs(), jaxs(), X, tapped=False).startswith(words)
