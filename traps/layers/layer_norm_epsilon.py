"""Epsilon of a layer norm.

`torch.nn.LayerNorm` adds 1e-5 to the variance, `nnx.LayerNorm` and Linen's 1e-6, and BERT's configuration says 1e-12. Where
the variance is near 1 the difference is a few millionths, which a tolerance of 1e-3 hides; it grows where a row is nearly
constant.
"""

import torch
from flax import nnx

from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(x)


INPUTS = (noise(2, 5, 6),)


class Wrong(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(6, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


class Right(Wrong):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(6, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
