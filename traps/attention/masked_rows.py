"""Rows that may see nothing.

A row whose keys are all masked, as of padding on the left, has no softmax: -inf gives NaN, -1e9 the mean of all values, and
`scaled_dot_product_attention` gives zeros. The numbers do not matter until something reads them: a mean over the row, a
norm over the batch, or a gradient.
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
        self.q, self.k, self.v = (torch.nn.Linear(6, 4) for _ in range(3))

    def forward(self, x, seen):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


SEEN = np.tril(np.ones((5, 5), bool)) & np.array([False, False, True, True, True])
INPUTS = noise(2, 5, 6), np.stack([np.tril(np.ones((5, 5), bool)), SEEN])


def project(p, x):
    return (jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"]) for name in "qkv")


def wrong(p, x, seen):
    q, k, v = project(p, x)
    return jax.nn.softmax(jnp.where(seen, q @ k.mT / 2, -1e9)) @ v


def right(p, x, seen):
    q, k, v = project(p, x)
    weights = jax.nn.softmax(jnp.where(seen, q @ k.mT / 2, -1e9))
    return jnp.where(seen.any(-1, keepdims=True), weights, 0) @ v
