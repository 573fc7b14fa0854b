"""A slice that would pass the end.

JAX knows shapes alone: a `dynamic_slice` or `dynamic_update_slice` that would pass the end is moved back until it fits, an
index past the end becomes the last one, and an update there is dropped. torch gives less, or an IndexError. A cache that is
full is written at the wrong place in silence.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise

SIZE, STEP = 4, 3


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(SIZE, 5)

    def forward(self, x):
        padded = torch.nn.functional.pad(x, (0, SIZE))
        return self.out(torch.stack([padded[:, i : i + SIZE] for i in range(0, x.shape[1], STEP)], 1))


INPUTS = (noise(2, 8),)


def windows(p, x, length):
    cut = [jax.lax.dynamic_slice_in_dim(x, i, SIZE, 1) for i in range(0, length, STEP)]
    return jf.tap("out", jnp.stack(cut, 1) @ p["out.weight"].T + p["out.bias"])


def wrong(p, x):
    return windows(p, x, x.shape[1])


def right(p, x):
    return windows(p, jnp.pad(x, ((0, 0), (0, SIZE))), x.shape[1])
