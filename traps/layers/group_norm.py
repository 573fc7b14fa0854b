"""Groups of a group norm.

A group of torch's `GroupNorm` is a run of neighbouring channels. A reshape to (channels / groups, groups) makes groups of
every n-th channel: it runs, has the right shape, and is wrong unless there is one group or one channel in each.
"""

import jax.numpy as jnp
import torch

from traps.run import noise

GROUPS = 2


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.GroupNorm(GROUPS, 6)

    def forward(self, x):
        return self.norm(x)


INPUTS = (noise(3, 6, 5),)


def wrong(p, x):
    parts = x.reshape(len(x), -1, GROUPS, x.shape[-1])
    mean, var = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    x = ((parts - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape)
    return x * p["norm.weight"][:, None] + p["norm.bias"][:, None]


def right(p, x):
    parts = x.reshape(len(x), GROUPS, -1, x.shape[-1])
    mean, var = parts.mean((2, 3), keepdims=True), parts.var((2, 3), keepdims=True)
    x = ((parts - mean) / jnp.sqrt(var + 1e-5)).reshape(x.shape)
    return x * p["norm.weight"][:, None] + p["norm.bias"][:, None]
