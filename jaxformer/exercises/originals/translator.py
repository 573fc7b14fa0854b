"""A translator and its loss: an encoder and a decoder that share an embedding, sinusoids, cross-attention, padded sentences."""

import numpy as np
import torch

import jaxformer as jf

VOCAB, D, HEADS, PAD = 17, 8, 2, 0


def sinusoids(length):
    rates = 10000.0 ** (-torch.arange(0, D, 2) / D)
    angles = torch.arange(length)[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(D, D) for _ in range(4))

    def forward(self, x, memory, seen):
        q = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (f(memory).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.key, self.value))
        scores = (q @ k.mT / (D // HEADS) ** 0.5).masked_fill(~seen, -1e9)
        return self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = torch.nn.LayerNorm(D), Attention()

    def forward(self, x, seen):
        y = self.norm(x)
        return x + self.attention(y, y, seen)


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = torch.nn.LayerNorm(D), Attention()
        self.norm2, self.cross = torch.nn.LayerNorm(D), Attention()

    def forward(self, x, memory, seen, source):
        y = self.norm1(x)
        x = x + self.attention(y, y, seen)
        return x + self.cross(self.norm2(x), memory, source)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.encoder, self.decoder = torch.nn.Embedding(VOCAB, D), Encoder(), Decoder()
        self.norm, self.head = torch.nn.LayerNorm(D), torch.nn.Linear(D, VOCAB)

    def forward(self, source, target):
        source, target = source.long(), target.long()
        given, wanted = target[:, :-1], target[:, 1:]
        seen = (source != PAD)[:, None, None]
        memory = self.encoder(self.embed(source) * D**0.5 + sinusoids(source.shape[1]), seen)
        causal = torch.ones(given.shape[1], given.shape[1], dtype=torch.bool).tril()
        x = self.decoder(self.embed(given) * D**0.5 + sinusoids(given.shape[1]), memory, causal, seen)
        logits = self.head(self.norm(x))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)


def inputs(seed: int) -> tuple[np.ndarray, ...]:
    (source, valid), (target, _) = (jf.probe(vocab=VOCAB, length=length, seed=seed + length) for length in (9, 7))
    return source[valid.any(1)], target[valid.any(1)]
