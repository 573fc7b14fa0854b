"""Standard deviation of torch and of NumPy.

`x.std()` and `x.var()` of torch divide by n - 1, those of NumPy and JAX by n. `LayerNorm` and `BatchNorm` divide by n on
both sides, so only code that calls `std` or `var` itself is in danger. `correction=1` is torch's word for `ddof=1`.
"""

import torch

from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


INPUTS = (noise(2, 5, 6),)


def wrong(p, x):
    return p["gain"] * (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-6)


def right(p, x):
    return p["gain"] * (x - x.mean(-1, keepdims=True)) / (x.std(-1, ddof=1, keepdims=True) + 1e-6)
