"""Running statistics of a batch norm.

torch's momentum 0.1 is the part of the new value, Flax's 0.99 that of the old: `momentum=0.1` in Flax forgets nine tenths
at each step. Moreover torch keeps the unbiased variance, and Flax the biased one, so that the same momentum is not enough.
"""

import jax
import jax.numpy as jnp
import torch
from flax import nnx

from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(x)


INPUTS = (noise(7, 6),)
OPTIONS = {"mode": "train"}


class Wrong(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(6, momentum=0.1, use_fast_variance=False, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


def right(p, x):
    mean, var = x.mean(0), x.var(0)
    new = {"norm.running_mean": mean, "norm.running_var": x.var(0, ddof=1)}
    statistics = {name: 0.9 * jax.lax.stop_gradient(p[name]) + 0.1 * value for name, value in new.items()}
    return (x - mean) / jnp.sqrt(var + 1e-5) * p["norm.weight"] + p["norm.bias"], statistics
