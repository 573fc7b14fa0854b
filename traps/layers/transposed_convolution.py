"""Transposed convolution.

torch's `ConvTranspose` is the gradient of a convolution: its window runs backwards, and its weight is (in, out, ...). JAX's
`conv_transpose` does not turn the window unless `transpose_kernel=True`. Reported as equinox 574.
"""

import jax
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.ConvTranspose1d(3, 4, 4, stride=2)

    def forward(self, x):
        return self.up(x)


INPUTS = (noise(2, 3, 6),)


def wrong(p, x):
    kernel = p["up.weight"].transpose(2, 0, 1)
    x = jax.lax.conv_transpose(x, kernel, (2,), "VALID", dimension_numbers=("NCH", "HIO", "NCH"))
    return jf.tap("up", x + p["up.bias"][:, None])


def right(p, x):
    kernel = p["up.weight"].transpose(2, 0, 1)[::-1]
    x = jax.lax.conv_transpose(x, kernel, (2,), "VALID", dimension_numbers=("NCH", "HIO", "NCH"))
    return jf.tap("up", x + p["up.bias"][:, None])
