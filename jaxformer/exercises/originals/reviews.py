"""A classifier of reviews: an encoder with post-norm, learned positions and a masked mean."""

import numpy as np
import torch

import jaxformer as jf

VOCAB, LENGTH, D, HEADS, WIDE, LABELS, PAD = 19, 10, 12, 3, 20, 4, 1


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(D, D) for _ in range(4))

    def forward(self, x, valid):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.mT / (D // HEADS) ** 0.5
        weights = torch.softmax(scores.masked_fill(~valid[:, None, None], -1e9), -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm1 = Attention(), torch.nn.LayerNorm(D, eps=1e-12)
        self.up, self.down, self.norm2 = torch.nn.Linear(D, WIDE), torch.nn.Linear(WIDE, D), torch.nn.LayerNorm(D, eps=1e-12)

    def forward(self, x, valid):
        x = self.norm1(x + self.attention(x, valid))
        return self.norm2(x + self.down(torch.nn.functional.gelu(self.up(x))))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(VOCAB, D), torch.nn.Embedding(LENGTH + PAD + 1, D)
        self.norm = torch.nn.LayerNorm(D, eps=1e-12)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.classify = torch.nn.Linear(D, LABELS)

    def forward(self, ids):
        ids = ids.long()
        valid = ids != PAD
        places = valid.cumsum(1) * valid + PAD
        x = self.norm(self.words(ids) + self.places(places))
        for layer in self.layers:
            x = layer(x, valid)
        total = (x * valid[..., None]).sum(1)
        return self.classify(total / valid.sum(1, keepdim=True))


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    ids, valid = jf.probe(vocab=VOCAB, length=LENGTH, seed=seed, pad=PAD)
    return (ids[valid.any(1)],)
