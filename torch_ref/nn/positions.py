"""Positions: fixed tables that are added to the tokens, and the relative position bias.

The bias is added to the scores by the distance of key and query: `1 N T S`, one for all layers of a stack, or for each."""

import math

import torch
from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.configuration import FixedTable
from jaxformer.validation.inputs import check_bias
from torch_ref.nn.cache import KVCache, LayerCache
from torch_ref.nn.masks import seen_keys


def sinusoid(n_positions: int, d_model: int) -> Tensor:
    """The table of Vaswani et al. 2017, section 3.5: float64 of shape (n_positions, d_model).

    PE(p, 2i) = sin(p / 10000^(2i / d_model))        PE(p, 2i + 1) = cos(the same angle)
    """
    even = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = torch.arange(n_positions, dtype=torch.float64)[:, None] / 10000.0 ** (even / d_model)
    table = torch.empty(n_positions, d_model, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : d_model // 2]
    return table


def sinusoid_blocks(n_positions: int, d_model: int) -> Tensor:
    """Sinusoid table with all sines before all cosines (Marian's and fairseq's order)."""
    table = sinusoid(n_positions, d_model)
    return torch.cat([table[:, 0::2], table[:, 1::2]], dim=1)


TABLES = {"sinusoid": sinusoid, "sinusoid_blocks": sinusoid_blocks}


def position_table(positions: str | FixedTable, n_positions: int, d_model: int) -> Tensor:
    """Return the first rows of the given table, or of the table of that name, in float64."""
    if isinstance(positions, FixedTable):
        return torch.tensor(positions.array[:n_positions])
    return TABLES[positions](n_positions, d_model)


def bucket(distance: Tensor, buckets: int, farthest: int, *, both_sides: bool) -> Tensor:
    """Return T5's bucket of each distance, key - query.

    Near distances have a bucket each, farther ones share buckets by their logarithm (in float32, as in transformers), and
    `farthest` and beyond share the last bucket. With `both_sides`, half of the buckets are for keys after the query.
    """
    later = torch.zeros_like(distance)
    if both_sides:
        buckets //= 2
        later, distance = (distance > 0) * buckets, distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    ratio = (distance.clamp(min=exact).float() / exact).log()
    shared = ratio / math.log(farthest / exact) * (buckets - exact)
    return later + torch.where(distance < exact, distance, (exact + shared.long()).clamp(max=buckets - 1))


def alibi_slopes(heads: int) -> Tensor:
    """ALiBi's slopes: 2^(-8i / n) for i = 1 ... n if the number of heads n is a power of two. Otherwise the slopes of the next
    power of two, every second one first.
    """
    power = 1 << (heads - 1).bit_length()
    slopes = 2.0 ** (-8 * torch.arange(1, power + 1, dtype=torch.float64) / power)
    return (slopes if power == heads else torch.cat([slopes[1::2], slopes[::2]]))[:heads]


class RelativeBias(nn.Module):
    """T5's learned bias per bucket of distances, or ALiBi's bias, -slope * distance, which has no weights."""

    def __init__(self, config: BlockConfig, *, causal: bool):
        super().__init__()
        self.heads, self.causal = config.n_heads, causal
        self.buckets, self.farthest = config.relative_buckets, config.relative_distance
        learned = config.relative_bias == "t5"
        self.weight = nn.Parameter(torch.zeros(self.buckets, self.heads)) if learned else None

    def forward(self, queries: int, keys: int, start: int, dtype: torch.dtype) -> Tensor:
        """Return the bias for queries at start, start + 1, ... and keys at 0, 1, ..."""
        distance = torch.arange(keys)[None, :] - (torch.arange(queries) + start)[:, None]
        if self.weight is None:
            return -(alibi_slopes(self.heads).to(dtype)[:, None, None] * distance.abs().to(dtype))[None]
        found = bucket(distance, self.buckets, self.farthest, both_sides=not self.causal)
        return self.weight.to(dtype)[found].movedim(-1, 0)[None]


class KeyBias(nn.Module):
    """ALiBi as Falcon computes it: slope * position of the key / sqrt(H), with slopes, positions and their products rounded to
    bfloat16 whatever the model's type.

    Without the rounding it would be ALiBi under a causal mask: softmax ignores what all keys of a query have in common.
    """

    def __init__(self, config: BlockConfig):
        super().__init__()
        self.heads, self.width = config.n_heads, config.head_width

    def forward(self, seen: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the bias for keys whose positions count the keys before them that are `seen`: `_ N 1 S`."""
        positions = torch.where(seen, seen.cumsum(1) - 1, 0).bfloat16()
        products = alibi_slopes(self.heads).bfloat16()[None, :, None, None] * positions[:, None, None]
        return products.to(dtype) / math.sqrt(self.width)


def make_bias(config: BlockConfig, *, causal: bool) -> RelativeBias | KeyBias | None:
    """Build the bias that all layers of a stack share; None if there is none."""
    if config.relative_bias == "alibi_bfloat16":
        return KeyBias(config)
    shared = config.relative_bias in ("t5", "alibi") and not config.relative_per_layer
    return RelativeBias(config, causal=causal) if shared else None


def biased(
    module: RelativeBias | KeyBias | None,
    x: Tensor,
    cache: KVCache | LayerCache | None,
    mask: Tensor | None,
    bias: Tensor | None,
) -> Tensor | None:
    """Return the bias with the relative bias added of the tokens x, which follow those of the cache: `_ N T|1 S`."""
    if module is None:
        return bias
    start, keys = (0, x.shape[1]) if cache is None else (cache.length, cache.capacity)
    check_bias(bias, (x.shape[0], module.heads, x.shape[1], keys))
    dtype = torch.promote_types(x.dtype, torch.float32)
    of_keys = isinstance(module, KeyBias)
    relative = module(seen_keys(mask, keys), dtype) if of_keys else module(x.shape[1], keys, start, dtype)
    return relative if bias is None else relative + bias.to(relative.dtype)
