"""Queries, keys and values in one matrix.

GPT-2 packs all queries, then all keys, then all values. GPT-NeoX and BLOOM pack them head by head: the rows of a head's
query, key and value stand together. Both are reshapes of the same array.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise

HEADS, WIDTH = 2, 4


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(8, 3 * HEADS * WIDTH)

    def forward(self, x):
        packed = self.qkv(x).unflatten(-1, (HEADS, 3, WIDTH)).transpose(1, 2)
        q, k, v = packed.unbind(3)
        return (torch.softmax(q @ k.mT / 2, -1) @ v).transpose(1, 2).flatten(2)


INPUTS = (noise(2, 5, 8),)


def attend(q, k, v):
    q, k, v = (each.swapaxes(1, 2) for each in (q, k, v))
    return (jax.nn.softmax(q @ k.mT / 2) @ v).swapaxes(1, 2).reshape(2, 5, HEADS * WIDTH)


def wrong(p, x):
    packed = jf.tap("qkv", x @ p["qkv.weight"].T + p["qkv.bias"])
    return attend(*(each.reshape(2, 5, HEADS, WIDTH) for each in jnp.split(packed, 3, -1)))


def right(p, x):
    packed = jf.tap("qkv", x @ p["qkv.weight"].T + p["qkv.bias"])
    return attend(*jnp.moveaxis(packed.reshape(2, 5, HEADS, 3, WIDTH), 3, 0))
