"""Positions of a cache.

With a cache a step reads one token, whose position is the number of tokens before it. `arange(length)` of the ids that are
given is right in training and for the prompt, and 0 at each step.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch

import jaxformer as jf

PROMPT = np.array([[3, 1, 4, 1], [5, 9, 2, 6]], np.int32)
STEPS, ROOM = 3, 8


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(11, 6), torch.nn.Embedding(ROOM, 6)
        self.k, self.out = torch.nn.Linear(6, 6), torch.nn.Linear(6, 11)

    def forward(self, ids):
        x = self.words(ids.long()) + self.places(torch.arange(ids.shape[1]))
        hidden = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).triu(1)
        weights = torch.softmax((x @ self.k(x).mT).masked_fill(hidden, -torch.inf), -1)
        return self.out(weights @ x)


INPUTS = (PROMPT,)


def torch_steps(model):
    ids = torch.from_numpy(PROMPT)
    following = yield model(ids)
    for _ in range(STEPS):
        ids = torch.cat([ids, following[:, None]], 1)
        following = yield model(ids)[:, -1]


def read(p, ids, positions, held=None):
    x = jf.tap("words", p["words.weight"][ids])
    x = x + jf.tap("places", jnp.broadcast_to(p["places.weight"][positions], x.shape))
    held = x if held is None else jnp.concatenate([held, x], 1)
    keys = jf.tap("k", held @ p["k.weight"].T + p["k.bias"])
    seen = jnp.arange(held.shape[1]) <= jnp.arange(held.shape[1])[-ids.shape[1] :, None]
    weights = jax.nn.softmax(jnp.where(seen, x @ keys.mT, -jnp.inf))
    return jf.tap("out", weights @ held @ p["out.weight"].T + p["out.bias"]), held


def forward(p, ids):
    return read(p, ids, jnp.arange(ids.shape[1]))[0]


def wrong(p):
    logits, held = read(p, PROMPT, jnp.arange(PROMPT.shape[1]))
    for _ in range(STEPS):
        ids = yield logits[:, -1]
        logits, held = read(p, ids[:, None], jnp.arange(1), held)
    yield logits[:, -1]


def right(p):
    logits, held = read(p, PROMPT, jnp.arange(PROMPT.shape[1]))
    for _ in range(STEPS):
        ids = yield logits[:, -1]
        logits, held = read(p, ids[:, None], held.shape[1] + jnp.arange(1), held)
    yield logits[:, -1]
