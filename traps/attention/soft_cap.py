"""Soft cap and mask in their order.

Gemma 2 bends its scores by `cap * tanh(scores / cap)` before the mask is put on. After the mask, tanh turns -inf into -cap:
masked keys are seen, a little. In MaxText the cap was missing, then stood after the mask, for more than six months (issue
4305).
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise

CAP = 5.0


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)

    def forward(self, x):
        scores = CAP * torch.tanh(self.q(x) @ self.k(x).mT / 2 / CAP)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)


INPUTS = (noise(2, 5, 6),)


def scores(p, x):
    q, k = (jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"]) for name in "qk")
    return q @ k.mT / 2, jnp.tri(x.shape[1], dtype=bool)


def wrong(p, x):
    raw, seen = scores(p, x)
    return jax.nn.softmax(CAP * jnp.tanh(jnp.where(seen, raw, -jnp.inf) / CAP))


def right(p, x):
    raw, seen = scores(p, x)
    return jax.nn.softmax(jnp.where(seen, CAP * jnp.tanh(raw / CAP), -jnp.inf))
