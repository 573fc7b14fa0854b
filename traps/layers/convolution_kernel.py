"""Kernel of a convolution.

torch stores (out, in, height, width), Flax (height, width, in, out). Reversing all axes, `weight.T`, gives the right shape
where the window is square, and exchanges height with width.
"""

import jax
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(x)


INPUTS = (noise(2, 3, 6, 7),)
LAYOUT = ("NCHW", "HWIO", "NCHW")


def wrong(p, x):
    kernel = p["conv.weight"].T
    x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=LAYOUT)
    return jf.tap("conv", x + p["conv.bias"][:, None, None])


def right(p, x):
    kernel = p["conv.weight"].transpose(2, 3, 1, 0)
    x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=LAYOUT)
    return jf.tap("conv", x + p["conv.bias"][:, None, None])
