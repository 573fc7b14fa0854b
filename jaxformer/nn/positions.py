"""Positions: fixed tables that are added to the tokens, and the relative position bias.

The bias is added to the scores by the distance of key and query: `1 N T S`, one for all layers of a stack, or for each."""

import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.configuration import FixedTable
from jaxformer.nn.cache import KVCache, LayerCache
from jaxformer.nn.masks import seen_keys
from jaxformer.nn.precision import as_bfloat16, wide_dtype


def sinusoid(n_positions: int, d_model: int) -> np.ndarray:
    """The table of Vaswani et al. 2017, section 3.5: float64 of shape (n_positions, d_model).

        PE(p, 2i) = sin(p / 10000^(2i / d_model))        PE(p, 2i + 1) = cos(the same angle)

    An odd d_model ends on a sine. The angles are computed in float64 and rounded once, when the table is cast: in
    float32 the power and the exponential form of this formula differ by up to 7.6e-6.
    """
    even = np.arange(0, d_model, 2, dtype=np.float64)
    angles = np.arange(n_positions, dtype=np.float64)[:, None] / 10000.0 ** (even / d_model)
    table = np.empty((n_positions, d_model))
    table[:, 0::2] = np.sin(angles)
    table[:, 1::2] = np.cos(angles)[:, : d_model // 2]
    return table


def sinusoid_blocks(n_positions: int, d_model: int) -> np.ndarray:
    """Sinusoid table with all sines before all cosines (Marian's and fairseq's order)."""
    table = sinusoid(n_positions, d_model)
    return np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)


TABLES = {"sinusoid": sinusoid, "sinusoid_blocks": sinusoid_blocks}


def position_table(positions: str | FixedTable, n_positions: int, d_model: int) -> np.ndarray:
    """Return the first rows of the given table, or of the table of that name, in float64."""
    return positions.array[:n_positions] if isinstance(positions, FixedTable) else TABLES[positions](n_positions, d_model)


def bucket(distance: Int[np.ndarray, "*rows"], buckets: int, farthest: int, *, both_sides: bool) -> Int[np.ndarray, "*rows"]:
    """Return T5's bucket of each distance, key - query.

    Near distances have a bucket each, farther ones share buckets by their logarithm (in float32, as in transformers), and
    `farthest` and beyond share the last bucket. With `both_sides`, half of the buckets are for keys after the query.
    """
    later = np.zeros_like(distance)
    if both_sides:
        buckets //= 2
        later, distance = (distance > 0) * buckets, np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    exact = buckets // 2
    ratio = np.log(np.maximum(distance, exact).astype(np.float32) / np.float32(exact))
    shared = ratio / np.float32(math.log(farthest / exact)) * np.float32(buckets - exact)
    return later + np.where(distance < exact, distance, np.minimum(exact + shared.astype(np.int64), buckets - 1))


def alibi_slopes(heads: int) -> Float[np.ndarray, " N"]:
    """ALiBi's slopes: 2^(-8i / n) for i = 1 ... n if the number of heads n is a power of two. Otherwise the slopes of the next
    power of two, every second one first.
    """
    power = 1 << (heads - 1).bit_length()
    slopes = 2.0 ** (-8 * np.arange(1, power + 1) / power)
    return (slopes if power == heads else np.concatenate([slopes[1::2], slopes[::2]]))[:heads]


class RelativeBias(nnx.Module):
    """T5's learned bias per bucket of distances, or ALiBi's bias, -slope * distance, which has no weights."""

    def __init__(self, config: BlockConfig, *, causal: bool):
        self.heads, self.causal = config.n_heads, causal
        self.buckets, self.farthest = config.relative_buckets, config.relative_distance
        learned = config.relative_bias == "t5"
        self.table = nnx.Param(jnp.zeros((self.buckets, self.heads), jnp.float32)) if learned else None

    def __call__(self, queries: int, keys: int, start: int | Int[Array, ""], dtype: DTypeLike) -> Float[Array, "1 N T S"]:
        """Return the bias for queries at start, start + 1, ... and keys at 0, 1, ..."""
        key, query = jnp.arange(keys, dtype=jnp.int32), jnp.arange(queries, dtype=jnp.int32) + start
        distance = key[None, :] - query[:, None]
        if self.table is None:
            slopes = jnp.asarray(alibi_slopes(self.heads), dtype)
            return -(slopes[:, None, None] * jnp.abs(distance).astype(dtype)[None])[None]
        every = np.arange(-self.farthest, self.farthest + 1)
        known = jnp.asarray(bucket(every, self.buckets, self.farthest, both_sides=not self.causal), jnp.int32)
        found = known[jnp.clip(distance, -self.farthest, self.farthest) + self.farthest]
        return jnp.moveaxis(self.table[...].astype(dtype)[found], -1, 0)[None]


class KeyBias(nnx.Module):
    """ALiBi as Falcon computes it: slope * position of the key / sqrt(H), with slopes, positions and their products rounded to
    bfloat16 whatever the model's type.

    Without the rounding it would be ALiBi under a causal mask: softmax ignores what all keys of a query have in common.
    """

    def __init__(self, config: BlockConfig):
        self.heads, self.width = config.n_heads, config.head_width

    def __call__(self, seen: Bool[Array, "_ S"], dtype: DTypeLike) -> Float[Array, "_ N 1 S"]:
        """Return the bias for keys whose positions count the keys before them that are `seen`."""
        positions = jnp.where(seen, seen.cumsum(1, dtype=jnp.int32) - 1, 0).astype(dtype)
        slopes = jnp.asarray(alibi_slopes(self.heads).astype(jnp.bfloat16).astype(dtype))
        products = slopes[None, :, None, None] * as_bfloat16(positions)[:, None, None]
        return as_bfloat16(products) / math.sqrt(self.width)


def make_bias(config: BlockConfig, *, causal: bool) -> RelativeBias | KeyBias | None:
    """Build the bias that all layers of a stack share; None if there is none."""
    if config.relative_bias == "alibi_bfloat16":
        return KeyBias(config)
    shared = config.relative_bias in ("t5", "alibi") and not config.relative_per_layer
    return RelativeBias(config, causal=causal) if shared else None


def biased(
    module: RelativeBias | KeyBias | None, x: Array, cache: KVCache | LayerCache | None, mask: Array | None, bias: Array | None
) -> Array | None:
    """Return the bias with the relative bias added of the tokens x, which follow those of the cache: `_ N T|1 S`."""
    if module is None:
        return bias
    start, keys = (0, x.shape[1]) if cache is None else (cache.length, cache.capacity)
    dtype = wide_dtype(x.dtype)
    of_keys = isinstance(module, KeyBias)
    relative = module(seen_keys(mask, keys), dtype) if of_keys else module(x.shape[1], keys, start, dtype)
    return relative if bias is None else relative + bias.astype(relative.dtype)
