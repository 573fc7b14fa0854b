"""Which half is the gate.

`torch.nn.functional.glu` multiplies the first half by the sigmoid of the second. SwiGLU in Llama activates the first,
`gate_proj`, and where both are one matrix its order is that of the code that split it.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(6, 8)

    def forward(self, x):
        return torch.nn.functional.glu(self.up(x))


INPUTS = (noise(2, 5, 6),)


def wrong(p, x):
    gate, x = jnp.split(jf.tap("up", x @ p["up.weight"].T + p["up.bias"]), 2, -1)
    return jax.nn.sigmoid(gate) * x


def right(p, x):
    x, gate = jnp.split(jf.tap("up", x @ p["up.weight"].T + p["up.bias"]), 2, -1)
    return x * jax.nn.sigmoid(gate)
