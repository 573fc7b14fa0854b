"""An autoencoder with a codebook: the nearest code takes the place of each state, and gradients pass straight through."""

import numpy as np
import torch

D, WIDTH, CODES = 7, 5, 6


class Codebook(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = torch.nn.Embedding(CODES, WIDTH)

    def forward(self, x):
        nearest = (x[..., None, :] - self.codes.weight).pow(2).sum(-1).argmin(-1)
        return x + (self.codes(nearest) - x).detach()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm = torch.nn.Linear(D, WIDTH), torch.nn.LayerNorm(WIDTH)
        self.codebook, self.up = Codebook(), torch.nn.Linear(WIDTH, D)

    def forward(self, x):
        return self.up(torch.tanh(self.codebook(self.norm(self.down(x)))))


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    return (np.random.default_rng(seed).standard_normal((4, 6, D)).astype(np.float32),)
