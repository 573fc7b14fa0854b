"""Kernel of a linear layer.

`torch.nn.Linear` stores its weight as (out, in) and multiplies by the transpose, Flax stores (in, out). A square weight
fits both ways, so no shape complains; GPT-2's `Conv1D` of transformers stores (in, out) like Flax.
"""

import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.out = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4)

    def forward(self, x):
        return self.out(torch.tanh(self.query(x)))


INPUTS = (noise(2, 5, 6),)


def wrong(p, x):
    x = jf.tap("query", x @ p["query.weight"] + p["query.bias"])
    return jf.tap("out", jnp.tanh(x) @ p["out.weight"].T + p["out.bias"])


def right(p, x):
    x = jf.tap("query", x @ p["query.weight"].T + p["query.bias"])
    return jf.tap("out", jnp.tanh(x) @ p["out.weight"].T + p["out.bias"])
