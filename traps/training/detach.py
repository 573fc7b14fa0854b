"""A gradient that stops.

`detach()` and `torch.no_grad()` change no number of the forward pass, so a port without `stop_gradient` passes every test
of outputs, and trains another model.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.code, self.out = torch.nn.Linear(6, 4), torch.nn.Linear(4, 5)

    def forward(self, x):
        code = self.code(x)
        return self.out(code + (code.round() - code).detach())


INPUTS = (3 * noise(2, 5, 6),)


def linear(p, name, x):
    return jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])


def wrong(p, x):
    return linear(p, "out", jnp.round(linear(p, "code", x)))


def right(p, x):
    code = linear(p, "code", x)
    return linear(p, "out", code + jax.lax.stop_gradient(jnp.round(code) - code))
