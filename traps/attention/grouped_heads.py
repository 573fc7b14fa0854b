"""Keys of grouped heads: repeat or tile.

With fewer key heads than query heads, neighbouring queries share a key head: 0, 0, 1, 1. `torch.repeat_interleave` is
`jnp.repeat`, while torch's own `x.repeat` is `jnp.tile` and gives 0, 1, 0, 1.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise

QUERIES, KEYS, WIDTH = 4, 2, 3


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = torch.nn.Linear(6, QUERIES * WIDTH), torch.nn.Linear(6, KEYS * WIDTH)

    def forward(self, x):
        q, k = (f(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for f in (self.q, self.k))
        return torch.softmax(q @ k.repeat_interleave(QUERIES // KEYS, 1).mT, -1)


INPUTS = (noise(2, 5, 6),)


def heads(p, name, x):
    x = jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])
    return x.reshape(*x.shape[:2], -1, WIDTH).swapaxes(1, 2)


def wrong(p, x):
    keys = jnp.tile(heads(p, "k", x), (1, QUERIES // KEYS, 1, 1))
    return jax.nn.softmax(heads(p, "q", x) @ keys.mT)


def right(p, x):
    keys = jnp.repeat(heads(p, "k", x), QUERIES // KEYS, 1)
    return jax.nn.softmax(heads(p, "q", x) @ keys.mT)
