"""Remainder of a negative number.

`%` of torch and of jnp has the sign of the divisor, `torch.fmod` and `jax.lax.rem` that of the dividend; `//` rounds down,
while `jax.lax.div` rounds to zero. The positions of the keys before a query are negative.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Embedding(6, 1)

    def forward(self, x):
        at = torch.arange(x.shape[1])
        return x @ x.mT + self.bias((at - at[:, None]) % 4)[..., 0]


INPUTS = (noise(2, 7, 6),)


def distances(x):
    return jnp.arange(x.shape[1]) - jnp.arange(x.shape[1])[:, None]


def wrong(p, x):
    return x @ x.mT + jf.tap("bias", p["bias.weight"][jax.lax.rem(distances(x), 4)])[..., 0]


def right(p, x):
    return x @ x.mT + jf.tap("bias", p["bias.weight"][distances(x) % 4])[..., 0]
