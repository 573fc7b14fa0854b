"""A mixture of experts: two of four for each token, weights that sum to 1, and a shared expert behind a gate."""

import numpy as np
import torch

D, WIDE, EXPERTS, CHOSEN = 8, 10, 4, 2


class Expert(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = torch.nn.Linear(D, WIDE), torch.nn.Linear(D, WIDE), torch.nn.Linear(WIDE, D)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


class Mixture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router = torch.nn.Linear(D, EXPERTS, bias=False)
        self.experts = torch.nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.shared, self.shared_gate = Expert(), torch.nn.Linear(D, 1, bias=False)

    def forward(self, x):
        weights, chosen = torch.softmax(self.router(x), -1).topk(CHOSEN)
        weights = weights / weights.sum(-1, keepdim=True)
        scale = torch.zeros(*x.shape[:-1], EXPERTS, dtype=x.dtype).scatter(-1, chosen, weights)
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        return (scale[..., None] * outputs).sum(-2) + torch.sigmoid(self.shared_gate(x)) * self.shared(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mixture, self.out = torch.nn.LayerNorm(D), Mixture(), torch.nn.Linear(D, 5)

    def forward(self, x):
        return self.out(x + self.mixture(self.norm(x)))


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    return (np.random.default_rng(seed).standard_normal((3, 7, D)).astype(np.float32),)
