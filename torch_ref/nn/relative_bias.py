"""Relative position bias, added to the scores by the distance of key and query: `1 N T S`, one for all layers of a stack."""

import math

import torch
from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig


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
