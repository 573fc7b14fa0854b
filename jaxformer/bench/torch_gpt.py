"""GPT in plain PyTorch, of nanoGPT's shape, with fused attention and a cache for generation. Weights have the twin's names."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jaxformer.config.models import GPTConfig
from jaxformer.runtime.cores import cores

ACTIVATIONS = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_tanh": nn.GELU(approximate="tanh")}


class Attention(nn.Module):
    """Causal self-attention, over all of x; with a cache, x comes after the tokens in the cache."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.heads, self.rate = config.n_heads, config.attention_dropout
        self.qkv = nn.Linear(config.d_model, 3 * config.d_model)
        self.out = nn.Linear(config.d_model, config.d_model)

    def forward(self, x: Tensor, cache: Tensor | None, start: int) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if cache is not None:
            end = start + x.shape[1]
            cache[0, :, :, start:end], cache[1, :, :, start:end] = k, v
            k, v = cache[0, :, :, :end], cache[1, :, :, :end]
        rate = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=x.shape[1] > 1)
        return self.out(y.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with an activation."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.up, self.down = nn.Linear(config.d_model, config.d_ff), nn.Linear(config.d_ff, config.d_model)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model, config.norm_epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.d_model, config.norm_epsilon)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.residual_dropout)

    def forward(self, x: Tensor, cache: Tensor | None, start: int) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), cache, start))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class GPT(nn.Module):
    """GPT of plain torch layers: `logits = model(tokens)`."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.embed: Any = nn.ModuleDict(
            {
                "token": nn.Embedding(config.vocab_size, config.d_model),
                "position": nn.Embedding(config.context, config.d_model),
            }
        )
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.stack: Any = nn.ModuleDict({"blocks": nn.ModuleList(Block(config) for _ in range(config.n_layers))})
        self.norm = nn.LayerNorm(config.d_model, config.norm_epsilon)
        self.head = None if config.tied else nn.Linear(config.d_model, config.vocab_size, config.head_bias)

    def forward(self, tokens: Tensor, cache: Tensor | None = None, start: int = 0, *, last: bool = False) -> Tensor:
        """Return logits at every place of ids `B T`, or at the last place only."""
        positions = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        x = self.dropout(self.embed["token"](tokens) + self.embed["position"](positions))
        for i, block in enumerate(self.stack["blocks"]):
            x = block(x, None if cache is None else cache[i], start)
        x = self.norm(x[:, -1:] if last else x)
        return F.linear(x, self.embed["token"].weight) if self.head is None else self.head(x)

    @torch.inference_mode()
    def generate(self, prompt: Tensor, n_tokens: int) -> Tensor:
        """Generate the likeliest `B n_tokens` ids after a prompt `B P`; every layer's cache is allocated once."""
        config, (batch, start) = self.config, prompt.shape
        sizes = (config.n_layers, 2, batch, config.n_heads, start + n_tokens, config.head_width)
        cache, found, tokens = torch.zeros(sizes, device=prompt.device), [], prompt
        for place in [0, *range(start, start + n_tokens - 1)]:
            tokens = self(tokens, cache, place, last=True).argmax(-1)
            found.append(tokens)
        return torch.cat(found, 1)


def use_faster_count(work: Callable[[], object]) -> int:
    """Time some work with one thread and with all (the second run of two); set and return the faster count."""
    seconds = {}
    for threads in sorted({1, cores()}):
        torch.set_num_threads(threads)
        work()
        start = time.perf_counter()
        work()
        seconds[threads] = time.perf_counter() - start
    faster = min(seconds, key=lambda threads: seconds[threads])
    torch.set_num_threads(faster)
    return faster
