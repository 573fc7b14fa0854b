"""Norm before or after.

The first Transformer and BERT norm the sum (post-norm), GPT-2 and what came after norm the input of each layer (pre-norm).
`torch.nn.TransformerEncoderLayer` is post-norm unless `norm_first=True`, and loads the same weights either way.
"""

import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(6), torch.nn.Linear(6, 7), torch.nn.Linear(7, 6)

    def forward(self, x):
        return self.norm(x + self.down(torch.relu(self.up(x))))


INPUTS = (noise(2, 5, 6),)


def norm(p, x):
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return jf.tap("norm", x * p["norm.weight"] + p["norm.bias"])


def feed_forward(p, x):
    x = jf.tap("up", x @ p["up.weight"].T + p["up.bias"])
    return jf.tap("down", jnp.maximum(x, 0) @ p["down.weight"].T + p["down.bias"])


def wrong(p, x):
    return x + feed_forward(p, norm(p, x))


def right(p, x):
    return norm(p, x + feed_forward(p, x))
