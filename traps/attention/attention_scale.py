"""Scale of attention.

Scores are divided by the root of a head's width, not of the model's. T5 does not divide at all, Gemma divides by a number
of its configuration, and a kernel that scales by itself may scale again: MaxText's cuDNN path scaled queries twice for ten
months.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise

HEADS, WIDTH = 2, 4


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = torch.nn.Linear(8, HEADS * WIDTH), torch.nn.Linear(8, HEADS * WIDTH)

    def forward(self, x):
        q, k = (f(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for f in (self.q, self.k))
        return torch.softmax(q @ k.mT / WIDTH**0.5, -1)


INPUTS = (noise(2, 5, 8),)


def heads(p, name, x):
    x = jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])
    return x.reshape(*x.shape[:2], HEADS, WIDTH).swapaxes(1, 2)


def wrong(p, x):
    scores = heads(p, "q", x) @ heads(p, "k", x).mT
    return jax.nn.softmax(scores / jnp.sqrt(x.shape[-1]))


def right(p, x):
    scores = heads(p, "q", x) @ heads(p, "k", x).mT
    return jax.nn.softmax(scores / jnp.sqrt(WIDTH))
