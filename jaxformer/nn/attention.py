"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxformer.config.models import BlockConfig
from jaxformer.errors import ConfigError
from jaxformer.nn.cache import KeysValues, LayerCache, fold_heads, unfold_heads
from jaxformer.nn.dropout import dropout
from jaxformer.nn.linear import Linear
from jaxformer.nn.precision import wide_dtype
from jaxformer.validation.inputs import check_scored, check_sources, source_widths


def masked_softmax(scores: Float[Array, "*rows S"], mask: Bool[Array, "..."] | None) -> Float[Array, "*rows S"]:
    """Softmax over the keys that may be attended to; a row without any gives zeros, and finite gradients."""
    if mask is not None:
        scores = jnp.where(mask, scores, jnp.full((), -jnp.inf, scores.dtype))
    highest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    exp_scores = jnp.exp(scores - jnp.where(jnp.isneginf(highest), jnp.zeros_like(highest), highest))
    total = exp_scores.sum(-1, keepdims=True)
    return exp_scores / jnp.where(total == 0, jnp.ones_like(total), total)


def attention_weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    mask: Bool[Array, "_ _ _ _"] | None = None,
    bias: Float[Array, "_ _ _ _"] | None = None,
) -> Float[Array, "B N T S"]:
    """softmax(q k^T / sqrt(H) + bias) in float32 or wider; consecutive groups of N / K heads share one key head.

    A key with a bias of -inf is masked.
    """
    batch, queries, heads, width = q.shape
    kv_heads, keys = k.shape[2], k.shape[1]
    check_scored((batch, heads, queries, keys), mask, bias)
    q, wide = q * width**-0.5, wide_dtype(q.dtype)
    if queries == 1:  # from a cache, which is read as it lies; elsewhere folding costs a small model a third of its step
        grouped = fold_heads(q).reshape(batch * kv_heads, -1, width)
        scores = jnp.einsum("xrh,xsh->xrs", grouped, fold_heads(k), preferred_element_type=wide)
    else:
        grouped = q.reshape(batch, queries, kv_heads, heads // kv_heads, width)
        scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=wide)
    scores = scores.reshape(batch, heads, queries, keys)
    return masked_softmax(scores if bias is None else scores + bias.astype(scores.dtype), mask)


def weighted_values(weights: Float[Array, "B N T S"], v: Float[Array, "B S K H"]) -> Float[Array, "B T N H"]:
    """The values, averaged by the attention weights."""
    batch, heads, queries, keys = weights.shape
    if queries != 1:
        grouped = weights.astype(v.dtype).reshape(batch, v.shape[2], -1, queries, keys)
        return jnp.einsum("bkgts,bskh->btkgh", grouped, v).reshape(batch, queries, heads, -1)
    grouped = weights.astype(v.dtype).reshape(batch * v.shape[2], -1, keys)
    gathered = jnp.einsum("xrs,xsh->xrh", grouped, fold_heads(v))
    return unfold_heads(gathered.reshape(batch * heads, queries, -1), heads)


def attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K H"],
    mask: Bool[Array, "_ _ _ _"] | None = None,
    bias: Float[Array, "_ _ _ _"] | None = None,
    dropout_rate: float = 0.0,
    rng: PRNGKeyArray | None = None,
) -> Float[Array, "B T N H"]:
    """What each query gathers from the values; with an rng, attention weights are dropped out."""
    return weighted_values(dropout(attention_weights(q, k, mask, bias), dropout_rate, rng), v)


def split_heads(x: Float[Array, "B T NH"], heads: int) -> Float[Array, "B T N H"]:
    """Head after head along the last axis."""
    return x.reshape(*x.shape[:-1], heads, -1)


def merge_heads(x: Float[Array, "B T N H"]) -> Float[Array, "B T NH"]:
    """The inverse of split_heads."""
    return x.reshape(*x.shape[:-2], -1)


Source = Float[Array, "B S _"] | tuple[Float[Array, "B S _"], Float[Array, "B S _"]]
"""States that keys and values are made of, or those of the keys and those of the values."""
Memory = Source | KeysValues
"""A source, or what was computed from it before."""


class MultiHeadAttention(nnx.Module):
    """Project to heads, attend, project back. Keys and values come from x itself, or from a memory.

    `kdim` and `vdim` are the widths of what keys and values are made of, as in torch.nn.MultiheadAttention. None: d_model.
    """

    def __init__(self, config: BlockConfig, *, cross: bool = False, kdim: int | None = None, vdim: int | None = None):
        self.heads, self.kv_heads = config.n_heads, config.kv_heads
        self.dropout_rate = config.attention_dropout
        d_model, d_q, d_kv = config.d_model, config.n_heads * config.head_width, config.kv_heads * config.head_width
        self.kdim, self.vdim = source_widths(d_model, cross, kdim, vdim)
        self.fused = config.projections == "fused" and not cross
        if self.fused:
            self.qkv = Linear(d_model, d_q + 2 * d_kv, config.qkv_bias)
        else:
            self.query = Linear(d_model, d_q, config.qkv_bias)
            self.key = Linear(self.kdim, d_kv, config.qkv_bias)
            self.value = Linear(self.vdim, d_kv, config.qkv_bias)
        self.out = Linear(d_q, d_model, config.output_bias) if config.output_projection else None

    def project(
        self, x: Float[Array, "B T D"], memory: Memory | None
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"], Float[Array, "B S K H"]]:
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
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
    ) -> Float[Array, "B N T S"]:
        """The attention weights, for plotting."""
        q, k, _ = self.project(x, memory)
        return attention_weights(q, k, mask, bias)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        rng: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Of the keys that `mask` (`B N|1 T S`, True = may attend) allows; `bias` of that shape is added to the scores."""
        return self.extend(x, None, memory, mask, rng, bias=bias)[0]

    def extend(
        self,
        x: Float[Array, "B T D"],
        cache: LayerCache | None,
        memory: Memory | None = None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        rng: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        """The output for x after the cached tokens, and the cache with x added. Without a cache: x alone."""
        q, k, v = self.project(x, memory)
        if cache is not None:
            k, v, cache = cache.append(k, v)
        y = merge_heads(attention(q, k, v, mask, bias, self.dropout_rate, rng))
        return (y if self.out is None else self.out(y)), cache


def split_qkv(
    qkv: Float[Array, "B T X"], heads: int, kv_heads: int
) -> tuple[Float[Array, "B T NH"], Float[Array, "B T KH"], Float[Array, "B T KH"]]:
    """All queries, then all keys, then all values, as torch and GPT-2 pack them."""
    width = qkv.shape[-1] // (heads + 2 * kv_heads)
    q, k, v = jnp.split(qkv, [heads * width, (heads + kv_heads) * width], axis=-1)
    return q, k, v
