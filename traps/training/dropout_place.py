"""Where units are dropped.

In a layer of the Transformer, dropout is on what the layer adds, before the residual. After the sum it has the same rate,
trains too, and drops the residual with it. In inference there is no difference.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.drop = torch.nn.Linear(6, 6), torch.nn.Dropout(0.3)

    def forward(self, x):
        return x + self.drop(torch.tanh(self.layer(x)))


INPUTS = (noise(2, 5, 6),)
OPTIONS = {"mode": "train"}


def layer(p, x):
    return jnp.tanh(jf.tap("layer", x @ p["layer.weight"].T + p["layer.bias"]))


def drop(x):
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.7, x.shape), x / 0.7, 0)


def wrong(p, x):
    return drop(x + layer(p, x))


def right(p, x):
    return x + drop(layer(p, x))
