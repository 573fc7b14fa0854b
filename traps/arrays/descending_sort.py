"""Equal numbers in a descending sort.

A stable descending sort keeps equal numbers in their order, on both sides. An ascending one that is reversed turns them
round, and `torch.topk` promises no order at all: ties are common among router logits in bfloat16, and among repeated
tokens.
"""

import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.value = torch.nn.Linear(3, 4)

    def forward(self, x):
        order = x[..., 0].sort(descending=True, stable=True).indices
        return self.value(x).gather(1, order[..., None].expand(-1, -1, 4)).cumsum(1)


INPUTS = (noise(2, 7, 3).round(),)


def sorted_by(p, x, order):
    values = jf.tap("value", x @ p["value.weight"].T + p["value.bias"])
    return jnp.take_along_axis(values, order[..., None], 1).cumsum(1)


def wrong(p, x):
    return sorted_by(p, x, jnp.argsort(x[..., 0])[..., ::-1])


def right(p, x):
    return sorted_by(p, x, jnp.argsort(x[..., 0], descending=True))
