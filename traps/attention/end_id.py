"""After the end of a row.

A batch goes on until its last row ends. A row that has ended writes padding from there on, so what it would have written is
never read; without that rule it writes on, and other lengths and scores come out.
"""

import jax.numpy as jnp
import numpy as np
import torch

import jaxformer as jf

PROMPT, STEPS, END, PAD = np.array([[3, 1], [5, 9], [2, 6]], np.int32), 6, 7, 0


class Torch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = torch.nn.Embedding(11, 6), torch.nn.Linear(6, 11)

    def forward(self, ids):
        return self.out(torch.tanh(self.words(ids.long()).cumsum(1)))


INPUTS = (PROMPT,)


def torch_steps(model):
    ids = torch.from_numpy(PROMPT).long()
    ended = torch.zeros(len(ids), dtype=torch.bool)
    for _ in range(STEPS):
        following = torch.where(ended, PAD, model(ids)[:, -1].argmax(-1))
        ids, ended = torch.cat([ids, following[:, None]], 1), ended | (following == END)
    return ids


def forward(p, ids):
    x = jnp.tanh(jf.tap("words", p["words.weight"][ids]).cumsum(1))
    return jf.tap("out", x @ p["out.weight"].T + p["out.bias"])


def wrong(p):
    ids = jnp.asarray(PROMPT)
    for _ in range(STEPS):
        ids = jnp.concatenate([ids, forward(p, ids)[:, -1:].argmax(-1)], 1)
    return ids


def right(p):
    ids, ended = jnp.asarray(PROMPT), jnp.zeros(len(PROMPT), bool)
    for _ in range(STEPS):
        following = jnp.where(ended, PAD, forward(p, ids)[:, -1].argmax(-1))
        ids, ended = jnp.concatenate([ids, following[:, None]], 1), ended | (following == END)
    return ids
