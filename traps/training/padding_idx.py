"""The row that is not trained.

`torch.nn.Embedding(..., padding_idx=0)` drops the gradient of row 0, which stays what it was, zeros after a usual start. A
gather in JAX has that gradient: padding learns, unless `stop_gradient` or a mask of the optimizer keeps it.
"""

import jax
import jax.numpy as jnp
import torch

import jaxformer as jf

IDS, _ = jf.probe(vocab=11, length=8)


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(11, 6, padding_idx=0), torch.nn.Linear(6, 5)

    def forward(self, ids):
        return self.out(torch.tanh(self.embed(ids.long())))


INPUTS = (IDS,)
OPTIONS = {"mode": "train"}


def out(p, x):
    return jf.tap("out", jnp.tanh(jf.tap("embed", x)) @ p["out.weight"].T + p["out.bias"])


def wrong(p, ids):
    return out(p, p["embed.weight"][ids])


def right(p, ids):
    x = p["embed.weight"][ids]
    return out(p, jnp.where((ids == 0)[..., None], jax.lax.stop_gradient(x), x))
