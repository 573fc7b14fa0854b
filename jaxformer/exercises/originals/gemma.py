"""A decoder of the Gemma kind: scaled embeddings, gains of 1 + w, soft caps, a window in every other layer, a gated GELU."""

import numpy as np
import torch

import jaxformer as jf

VOCAB, LENGTH, D, HEADS, WIDTH, WIDE, LAYERS = 17, 12, 12, 2, 8, 20, 2
WINDOW, CAP, FINAL_CAP, SCALE = 4, 3.0, 6.0, 5.0**-0.5


class RMSNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


class Attention(torch.nn.Module):
    def __init__(self, window):
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(D, HEADS * WIDTH, bias=False) for _ in range(3))
        self.out, self.window = torch.nn.Linear(HEADS * WIDTH, D, bias=False), window

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = CAP * torch.tanh(q @ k.mT * SCALE / CAP)
        distance = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        seen = distance >= 0
        if self.window:
            seen = seen & (distance < WINDOW)
        weights = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = torch.nn.Linear(D, WIDE, bias=False), torch.nn.Linear(D, WIDE, bias=False)
        self.down = torch.nn.Linear(WIDE, D, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.gelu(self.gate(x), approximate="tanh") * self.up(x))


class Layer(torch.nn.Module):
    def __init__(self, window):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = RMSNorm(), Attention(window), RMSNorm(), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, D)
        self.layers = torch.nn.ModuleList(Layer(window=i % 2 == 0) for i in range(LAYERS))
        self.norm = RMSNorm()

    def forward(self, ids):
        x = self.embed(ids.long()) * torch.tensor(D**0.5, dtype=torch.bfloat16)
        for layer in self.layers:
            x = layer(x)
        return FINAL_CAP * torch.tanh(self.norm(x) @ self.embed.weight.T / FINAL_CAP)


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    return jf.probe(vocab=VOCAB, length=LENGTH, seed=seed)[:1]
