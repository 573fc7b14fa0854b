"""What True means in a mask.

In the `key_padding_mask` and `attn_mask` of `torch.nn.MultiheadAttention` True is what may not be seen, in
`scaled_dot_product_attention` what may; in JAX's and Flax's attention True is what may.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch

import jaxformer as jf
from traps.run import noise


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)

    def forward(self, x, padding):
        scores = self.q(x) @ self.k(x).mT / 2
        return torch.softmax(scores.masked_fill(padding[:, None], -torch.inf), -1)


INPUTS = noise(2, 5, 6), np.array([[False] * 5, [False] * 3 + [True] * 2])


def scores(p, x):
    q, k = (jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"]) for name in "qk")
    return q @ k.mT / 2


def wrong(p, x, padding):
    return jax.nn.softmax(jnp.where(padding[:, None], scores(p, x), -jnp.inf))


def right(p, x, padding):
    return jax.nn.softmax(jnp.where(padding[:, None], -jnp.inf, scores(p, x)))
