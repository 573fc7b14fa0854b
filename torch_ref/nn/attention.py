"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

import torch
from torch import Tensor, nn

from jaxformer.config.models import BlockConfig
from jaxformer.errors import ConfigError
from jaxformer.validation.inputs import check_scored, check_sources, source_widths
from torch_ref.nn.cache import KeysValues, LayerCache, fold_heads
from torch_ref.nn.masks import combine

KEEP_ALL = nn.Dropout(0.0)
"""No dropout."""


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over the keys that may be attended to; a row without any gives zeros, and finite gradients."""
    if mask is None:
        return scores.softmax(-1)
    alive = mask.any(-1, keepdim=True)
    return scores.masked_fill(~mask & alive, -torch.inf).softmax(-1).masked_fill(~alive, 0.0)


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(H) + bias), `B N T S`; consecutive groups of N / K heads share one key head.

    A key with a bias of -inf is masked.
    """
    check_scored((q.shape[0], q.shape[2], q.shape[1], k.shape[1]), mask, bias)
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = (q.transpose(1, 2) * q.shape[-1] ** -0.5) @ k.permute(0, 2, 3, 1)
    if bias is not None:
        hidden = bias.isneginf()
        scores, mask = scores + bias.masked_fill(hidden, 0.0).to(scores.dtype), combine(mask, ~hidden)
    return masked_softmax(scores, mask)


def weighted_values(weights: Tensor, v: Tensor) -> Tensor:
    """The values, averaged by the attention weights: `B T N H`."""
    v = v.repeat_interleave(weights.shape[1] // v.shape[2], dim=2)
    return (weights @ v.transpose(1, 2)).transpose(1, 2)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: nn.Module = KEEP_ALL,
) -> Tensor:
    """What each query gathers from the values, `B T N H`; in training mode, `dropout` drops attention weights."""
    return weighted_values(dropout(attention_weights(q, k, mask, bias)), v)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Head after head along the last axis: `B T NH` -> `B T N H`."""
    return x.unflatten(-1, (heads, -1))


def merge_heads(x: Tensor) -> Tensor:
    """The inverse of split_heads."""
    return x.flatten(-2)


Source = Tensor | tuple[Tensor, Tensor]
"""States that keys and values are made of, or those of the keys and those of the values."""
Memory = Source | KeysValues
"""A source, or what was computed from it before."""


class MultiHeadAttention(nn.Module):
    """Project to heads, attend, project back. Keys and values come from x itself, or from a memory.

    `kdim` and `vdim` are the widths of what keys and values are made of, as in torch.nn.MultiheadAttention. None: d_model.
    """

    def __init__(self, config: BlockConfig, *, cross: bool = False, kdim: int | None = None, vdim: int | None = None):
        super().__init__()
        self.heads, self.kv_heads = config.n_heads, config.kv_heads
        self.dropout = nn.Dropout(config.attention_dropout)
        d_model, d_q, d_kv = config.d_model, config.n_heads * config.head_width, config.kv_heads * config.head_width
        self.kdim, self.vdim = source_widths(d_model, cross, kdim, vdim)
        self.fused = config.projections == "fused" and not cross
        if self.fused:
            self.qkv = nn.Linear(d_model, d_q + 2 * d_kv, config.qkv_bias)
        else:
            self.query = nn.Linear(d_model, d_q, config.qkv_bias)
            self.key = nn.Linear(self.kdim, d_kv, config.qkv_bias)
            self.value = nn.Linear(self.vdim, d_kv, config.qkv_bias)
        self.out = nn.Linear(d_q, d_model, config.output_bias) if config.output_projection else None

    def project(self, x: Tensor, memory: Memory | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x; keys and values of the memory, or of x."""
        if self.fused:
            if memory is not None:
                raise ConfigError("projections = 'fused' attends to x alone; build with cross=True to attend to a memory")
            q, k, v = split_qkv(self.qkv(x), self.heads, self.kv_heads)
            return split_heads(q, self.heads), split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
        read = memory if isinstance(memory, KeysValues) else self.keys_values(x if memory is None else memory)
        return split_heads(self.query(x), self.heads), *read.unfolded()

    def keys_values(self, source: Source) -> KeysValues:
        """What queries find in the source."""
        keys, values = source if isinstance(source, tuple) else (source, source)
        check_sources(keys, values, (self.kdim, self.vdim))
        keys, values = split_heads(self.key(keys), self.kv_heads), split_heads(self.value(values), self.kv_heads)
        return KeysValues(fold_heads(keys), fold_heads(values), self.kv_heads)

    def weights(
        self, x: Tensor, memory: Memory | None = None, mask: Tensor | None = None, *, bias: Tensor | None = None
    ) -> Tensor:
        """The attention weights, for plotting."""
        q, k, _ = self.project(x, memory)
        return attention_weights(q, k, mask, bias)

    def forward(
        self, x: Tensor, memory: Memory | None = None, mask: Tensor | None = None, *, bias: Tensor | None = None
    ) -> Tensor:
        """Of the keys that `mask` (`B N|1 T S`, True = may attend) allows; `bias` of that shape is added to the scores."""
        return self.extend(x, None, memory, mask, bias=bias)[0]

    def extend(
        self,
        x: Tensor,
        cache: LayerCache | None,
        memory: Memory | None = None,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, LayerCache | None]:
        """The output for x after the cached tokens, and the cache with x added. Without a cache: x alone."""
        q, k, v = self.project(x, memory)
        if cache is not None:
            k, v, cache = cache.append(k, v)
        y = merge_heads(attention(q, k, v, mask, bias, self.dropout))
        return (y if self.out is None else self.out(y)), cache


def split_qkv(qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """All queries, then all keys, then all values, as torch and GPT-2 pack them."""
    width = qkv.shape[-1] // (heads + 2 * kv_heads)
    q, k, v = qkv.split([heads * width, kv_heads * width, kv_heads * width], dim=-1)
    return q, k, v
