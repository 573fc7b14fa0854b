"""The mean of a loss.

`cross_entropy` leaves out targets of -100 and divides by the number of the others. optax has no such number: -100 reads
another class or gives NaN, and a mask of zeros still leaves the mean over all places.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(6, 5)

    def forward(self, x, targets):
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


INPUTS = noise(2, 4, 6), np.array([[1, 4, 0, 2], [3, 3, -100, -100]])


def losses(p, x, targets):
    logits = jf.tap("head", x @ p["head.weight"].T + p["head.bias"])
    there = jnp.maximum(targets, 0)[..., None]
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), there, -1)[..., 0] * (targets != -100)


def wrong(p, x, targets):
    return losses(p, x, targets).mean()


def right(p, x, targets):
    return losses(p, x, targets).sum() / (targets != -100).sum()
