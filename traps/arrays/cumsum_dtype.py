"""Type of a sum of small integers.

`torch.cumsum` of an int8 or uint8 array counts in int64. `jnp.cumsum` counts in the array's own type, and begins anew
behind its largest number, 127 for int8: positions that are counted from a mask go wrong in long texts alone.
"""

import jax.numpy as jnp
import numpy as np
import torch

LENGTH = 140


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rates = torch.nn.Parameter(torch.ones(4))

    def forward(self, valid):
        return torch.sin((valid.cumsum(1) - 1)[..., None] * self.rates)


INPUTS = (np.ones((2, LENGTH), np.int8),)


def wrong(p, valid):
    return jnp.sin((jnp.cumsum(valid, 1) - 1)[..., None] * p["rates"])


def right(p, valid):
    return jnp.sin((jnp.cumsum(valid, 1, dtype=jnp.int32) - 1)[..., None] * p["rates"])
