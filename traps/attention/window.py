"""One token more in a sliding window.

A window of 4 tokens lets a query see itself and three others: distances 0 to 3. `distance <= window` sees one more, and a
text that is shorter than the window never shows it. In MaxText it lived for 22 months (issue 4289).
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf
from traps.run import noise

WINDOW = 4


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)

    def forward(self, x):
        at = torch.arange(x.shape[1])
        distance = at[:, None] - at
        seen = (distance >= 0) & (distance < WINDOW)
        return torch.softmax((self.q(x) @ self.k(x).mT / 2).masked_fill(~seen, -torch.inf), -1)


INPUTS = (noise(2, 9, 6),)


def masked(p, x, longest):
    q, k = (jf.tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"]) for name in "qk")
    distance = jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[1])
    return jnp.where((distance >= 0) & (distance <= longest), q @ k.mT / 2, -jnp.inf)


def wrong(p, x):
    return jax.nn.softmax(masked(p, x, longest=WINDOW))


def right(p, x):
    return jax.nn.softmax(masked(p, x, longest=WINDOW - 1))
