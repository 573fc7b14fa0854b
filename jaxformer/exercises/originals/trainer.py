"""A language model that is trained: AdamW with decay, a clipped gradient, and a warmup."""

import numpy as np
import torch
from torch.optim.lr_scheduler import LambdaLR

VOCAB, D, RATE, DECAY, LIMIT, WARMUP = 11, 8, 0.02, 0.1, 0.3, 3


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = torch.nn.Embedding(VOCAB, D), torch.nn.Linear(D, D)
        self.norm, self.head = torch.nn.LayerNorm(D), torch.nn.Linear(D, VOCAB)

    def forward(self, ids):
        x = self.embed(ids.long())
        return self.head(self.norm(x + torch.tanh(self.mix(x))))


def loss(model, ids):
    return torch.nn.functional.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:].long())


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=DECAY)


def schedule(optimizer):
    return LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARMUP))


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    return (np.random.default_rng(seed).integers(0, VOCAB, (4, 6), np.int32),)


def batches(seed: int) -> list[tuple[np.ndarray, ...]]:
    return [inputs(10 * seed + i) for i in range(5)]
