"""GELU by erf or by tanh.

`torch.nn.GELU()` computes the error function, `jax.nn.gelu` approximates it by a tanh unless it is told otherwise. GPT-2
and T5 1.1 were trained with the approximation, BERT without: either may be right, and the two differ by less than 1e-3.
"""

import jax
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act = torch.nn.Linear(6, 7), torch.nn.GELU()

    def forward(self, x):
        return self.act(self.up(x))


INPUTS = (noise(2, 5, 6),)


def wrong(p, x):
    x = jf.tap("up", x @ p["up.weight"].T + p["up.bias"])
    return jax.nn.gelu(x)


def right(p, x):
    x = jf.tap("up", x @ p["up.weight"].T + p["up.bias"])
    return jax.nn.gelu(x, approximate=False)
