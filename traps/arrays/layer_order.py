"""Layers that are stacked in another order.

A scan over layers needs their weights in one array. Names that are sorted as texts put "layers.10" before "layers.2": with
up to ten layers nothing is wrong.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise

LAYERS = 12


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


INPUTS = (noise(2, 5, 6),)


def run(p, x, names):
    stacked = [jnp.stack([p[f"{name}.{leaf}"] for name in names]) for leaf in ("weight", "bias")]

    def layer(x, weights):
        weight, bias = weights
        return x + jnp.tanh(jf.tap("layers", x @ weight.T + bias)), None

    return jax.lax.scan(layer, x, tuple(stacked))[0]


def wrong(p, x):
    return run(p, x, sorted({name.rpartition(".")[0] for name in p}))


def right(p, x):
    return run(p, x, [f"layers.{i}" for i in range(LAYERS)])
