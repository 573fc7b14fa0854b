"""Gradient of a norm at zero.

`torch.linalg.norm` of a zero vector has gradient 0 and `jnp.linalg.norm` NaN, since JAX differentiates the root.
`jnp.where` around it does not help: the gradient of the branch that is not taken is NaN times 0. Replace the argument, not
the result.
"""

import jax.numpy as jnp
import numpy as np
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(6, 4)

    def forward(self, x, valid):
        return torch.linalg.vector_norm(self.out(x) * valid[..., None], dim=-1)


INPUTS = noise(2, 5, 6), np.array([[1] * 5, [1] * 3 + [0] * 2])


def squares(p, x, valid):
    x = jf.tap("out", x @ p["out.weight"].T + p["out.bias"]) * valid[..., None]
    return (x**2).sum(-1)


def wrong(p, x, valid):
    found = squares(p, x, valid)
    return jnp.where(found > 0, jnp.sqrt(found), 0)


def right(p, x, valid):
    found = squares(p, x, valid)
    return jnp.where(found > 0, jnp.sqrt(jnp.where(found > 0, found, 1)), 0)
