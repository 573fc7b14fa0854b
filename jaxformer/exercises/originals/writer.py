"""A small GPT-2: pre-norm, one matrix for queries, keys and values, GELU by tanh, the head tied to the embedding."""

import numpy as np
import torch

import jaxformer as jf

VOCAB, LENGTH, D, HEADS, LAYERS = 17, 9, 12, 3, 2


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT / (D // HEADS) ** 0.5).masked_fill(hidden, -torch.inf)
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = torch.nn.Linear(D, 4 * D), torch.nn.GELU("tanh"), torch.nn.Linear(4 * D, D)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = torch.nn.LayerNorm(D), Attention(), torch.nn.LayerNorm(D), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(VOCAB, D), torch.nn.Embedding(LENGTH, D)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.LayerNorm(D)

    def forward(self, ids):
        ids = ids.long()
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.words.weight.T


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    return jf.probe(vocab=VOCAB, length=LENGTH, seed=seed)[:1]
