"""Pairs of a rotary embedding.

The paper and GPT-J rotate neighbours (0 with 1, 2 with 3), Llama in transformers rotates halves (0 with d/2). Weights are
permuted when they are converted between the two, so a port has to know which of both its weights are for.
"""

import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise

WIDTH = 8


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(6, WIDTH)

    def forward(self, x):
        q = self.q(x)
        rates = 10000.0 ** (-torch.arange(0, WIDTH, 2) / WIDTH)
        angles = torch.arange(x.shape[1])[:, None] * torch.cat([rates, rates])
        a, b = q.chunk(2, -1)
        return q * angles.cos() + torch.cat([-b, a], -1) * angles.sin()


INPUTS = (noise(2, 5, 6),)


def rates():
    return 10000.0 ** (-jnp.arange(0, WIDTH, 2) / WIDTH)


def wrong(p, x):
    q = jf.tap("q", x @ p["q.weight"].T + p["q.bias"])
    angles = jnp.arange(x.shape[1])[:, None] * jnp.repeat(rates(), 2)
    turned = jnp.stack([-q[..., 1::2], q[..., ::2]], -1).reshape(q.shape)
    return q * jnp.cos(angles) + turned * jnp.sin(angles)


def right(p, x):
    q = jf.tap("q", x @ p["q.weight"].T + p["q.bias"])
    angles = jnp.arange(x.shape[1])[:, None] * jnp.tile(rates(), 2)
    a, b = jnp.split(q, 2, -1)
    return q * jnp.cos(angles) + jnp.concatenate([-b, a], -1) * jnp.sin(angles)
