"""Resizing a picture.

`jax.image.resize` smooths where it makes a picture smaller, torch's `interpolate` only with `antialias=True`. Corners are
another matter: `align_corners=True` of torch has no counterpart in `jax.image.resize`. Bicubic weights differed until jax
0.10 (jax 15768, transformers 31960).
"""

import jax
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(4, 5)

    def forward(self, x):
        return self.out(torch.nn.functional.interpolate(x, (3, 4), mode="bilinear"))


INPUTS = (noise(2, 3, 6, 8),)


def resized(p, x, antialias):
    x = jax.image.resize(x, (*x.shape[:2], 3, 4), "linear", antialias=antialias)
    return jf.tap("out", x @ p["out.weight"].T + p["out.bias"])


def wrong(p, x):
    return resized(p, x, antialias=True)


def right(p, x):
    return resized(p, x, antialias=False)
