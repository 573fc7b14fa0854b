"""A tensor that is changed in place.

`x += y` changes the tensor for everybody who holds it, views and residuals among them. `x = x + y` in JAX makes a new one,
and the residual keeps what it was.
"""

import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def forward(self, x):
        x = self.first(x)
        residual = x
        x += 0.5
        return residual + self.second(torch.tanh(x))


INPUTS = (noise(2, 5, 6),)


def linear(p, name, x):
    return jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])


def wrong(p, x):
    x = linear(p, "first", x)
    residual = x
    x = x + 0.5
    return residual + linear(p, "second", jnp.tanh(x))


def right(p, x):
    x = residual = linear(p, "first", x) + 0.5
    return residual + linear(p, "second", jnp.tanh(x))
