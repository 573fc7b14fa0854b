"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

import torch
from torch import Tensor, nn

from jaxformer.config import BlockConfig
from jaxformer.errors import ConfigError
from torch_ref.nn.cache import KeysValues, KVCache


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the keys that may be attended to; a row without any gives zeros, and finite gradients."""
    if mask is None:
        return scores.softmax(-1)
    alive = mask.any(-1, keepdim=True)
    return scores.masked_fill(~mask & alive, -torch.inf).softmax(-1).masked_fill(~alive, 0.0)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(H)), `B N T S`; consecutive groups of N / K heads share one key head."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = (q.transpose(1, 2) * q.shape[-1] ** -0.5) @ k.permute(0, 2, 3, 1)
    return masked_softmax(scores, mask)


def weighted_values(weights: Tensor, v: Tensor) -> Tensor:
    """The values, averaged by the attention weights: `B T N H`."""
    v = v.repeat_interleave(weights.shape[1] // v.shape[2], dim=2)
    return (weights @ v.transpose(1, 2)).transpose(1, 2)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Head after head along the last axis: `B T NH` -> `B T N H`."""
    return x.unflatten(-1, (heads, -1))


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of split_heads."""
    return x.flatten(-2)


Memory = Tensor | KeysValues
"""The states of a source, or what was computed from them before."""


class MultiHeadAttention(nn.Module):
    """Project to heads, attend, project back. Keys and values come from x itself, or from a memory."""

    def __init__(self, config: BlockConfig, *, cross: bool = False):
        super().__init__()
        self.heads, self.kv_heads = config.n_heads, config.kv_heads
        self.dropout = nn.Dropout(config.attention_dropout)
        d_model, d_kv = config.d_model, config.kv_heads * config.head_width
        self.fused = config.projections == "fused" and not cross
        if self.fused:
            self.qkv = nn.Linear(d_model, d_model + 2 * d_kv, config.qkv_bias)
        else:
            self.query = nn.Linear(d_model, d_model, config.qkv_bias)
            self.key = nn.Linear(d_model, d_kv, config.qkv_bias)
            self.value = nn.Linear(d_model, d_kv, config.qkv_bias)
        self.out = nn.Linear(d_model, d_model, config.output_bias) if config.output_projection else None

    def project(self, x: Tensor, memory: Memory | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x; keys and values of the memory, or of x."""
        if self.fused:
            if memory is not None:
                raise ConfigError("projections = 'fused' attends to x alone; build with cross=True to attend to a memory")
            q, k, v = split_qkv(self.qkv(x), self.heads, self.kv_heads)
            return split_heads(q, self.heads), split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
        read = memory if isinstance(memory, KeysValues) else self.keys_values(x if memory is None else memory)
        return split_heads(self.query(x), self.heads), read.keys, read.values

    def keys_values(self, source: Tensor) -> KeysValues:
        """What queries find in the source."""
        return KeysValues(split_heads(self.key(source), self.kv_heads), split_heads(self.value(source), self.kv_heads))

    def weights(self, x: Tensor, memory: Memory | None = None, mask: Tensor | None = None) -> Tensor:
        """The attention weights themselves, to look at."""
        q, k, _ = self.project(x, memory)
        return attention_weights(q, k, mask)

    def forward(self, x: Tensor, memory: Memory | None = None, mask: Tensor | None = None) -> Tensor:
        return self.extend(x, None, memory, mask)[0]

    def extend(
        self, x: Tensor, cache: KVCache | None, memory: Memory | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, KVCache | None]:
        """The output for x behind what the cache holds, and the cache that holds x too. Without a cache: x alone."""
        q, k, v = self.project(x, memory)
        if cache is not None:
            k, v, cache = cache.append(k, v)
        y = merge_heads(weighted_values(self.dropout(attention_weights(q, k, mask)), v))
        return (y if self.out is None else self.out(y)), cache


def split_qkv(qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """All queries, then all keys, then all values, as torch and GPT-2 pack them."""
    width = qkv.shape[-1] // (heads + 2 * kv_heads)
    q, k, v = qkv.split([heads * width, kv_heads * width, kv_heads * width], dim=-1)
    return q, k, v
