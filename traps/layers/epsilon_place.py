"""Epsilon outside of the root.

A norm divides by `sqrt(variance + epsilon)`. Code that divides by `standard deviation + epsilon` has the same name for its
number, and is what the Annotated Transformer does: port what the source does, not what the paper says.
"""

import jax.numpy as jnp
import torch

from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(6, eps=1e-5)

    def forward(self, x):
        return self.norm(x)


INPUTS = (noise(2, 5, 6),)


def wrong(p, x):
    x = (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)
    return x * p["norm.weight"] + p["norm.bias"]


def right(p, x):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * p["norm.weight"] + p["norm.bias"]
