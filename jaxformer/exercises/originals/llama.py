"""A decoder of the Llama kind: RMS norm, rotary positions on a part of each head, grouped heads of a free width, SwiGLU."""

import numpy as np
import torch

import jaxformer as jf

VOCAB, LENGTH, D, HEADS, KEYS, WIDTH, WIDE, LAYERS = 17, 9, 12, 4, 2, 8, 20, 3
ROTATED, BASE = WIDTH // 2, 10000.0


class RMSNorm(torch.nn.Module):
    def __init__(self, width=D):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotate(x):
    rates = BASE ** (-torch.arange(0, ROTATED, 2) / ROTATED)
    angles = torch.arange(x.shape[-2])[:, None] * torch.cat([rates, rates])
    x, rest = x[..., :ROTATED], x[..., ROTATED:]
    a, b = x.chunk(2, -1)
    return torch.cat([x * angles.cos() + torch.cat([-b, a], -1) * angles.sin(), rest], -1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = torch.nn.Linear(D, HEADS * WIDTH, bias=False), torch.nn.Linear(D, KEYS * WIDTH, bias=False)
        self.v_proj, self.o_proj = torch.nn.Linear(D, KEYS * WIDTH, bias=False), torch.nn.Linear(HEADS * WIDTH, D, bias=False)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (each.repeat_interleave(HEADS // KEYS, 1) for each in (rotate(k), v))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (rotate(q) @ k.mT * WIDTH**-0.5).masked_fill(hidden, -torch.inf)
        return self.o_proj((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = torch.nn.Linear(D, WIDE, bias=False), torch.nn.Linear(D, WIDE, bias=False)
        self.down_proj = torch.nn.Linear(WIDE, D, bias=False)

    def forward(self, x):
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = RMSNorm(), Attention(), RMSNorm(), Mlp()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(VOCAB, D)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = RMSNorm(), torch.nn.Linear(D, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids.long())
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    return jf.probe(vocab=VOCAB, length=LENGTH, seed=seed)[:1]
