"""Normalisation of the last axis: functions first, then modules that own a gain and a bias."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jaxformer.config.blocks import BlockConfig, Norm


def layer_norm(x: Tensor, epsilon: float) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) with the biased variance (Ba et al. 2016)."""
    return F.layer_norm(x, x.shape[-1:], eps=epsilon)


def std_norm(x: Tensor, epsilon: float) -> Tensor:
    """(x - mean) / (std + epsilon) with the unbiased standard deviation."""
    centered = x - x.mean(-1, keepdim=True)
    return centered / (x.std(-1, keepdim=True, correction=min(1, x.shape[-1] - 1)) + epsilon)


def rms_norm(x: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019, equation 4)."""
    return F.rms_norm(x, x.shape[-1:], eps=epsilon)


FUNCTIONS = {"layer": layer_norm, "std": std_norm, "rms": rms_norm}


class ScaledNorm(nn.Module):
    """weight * normalised(x) + bias; with `unit_offset`, the gain is 1 + weight. RMSNorm has no bias; others may have one.

    `width` is the size of the last axis, or the shape of the last two, of which each row then has a gain of its own.
    """

    def __init__(self, kind: Norm, width: int | tuple[int, int], epsilon: float, bias: bool = True, unit_offset: bool = False):
        super().__init__()
        self.kind = kind
        self.epsilon = epsilon
        self.unit_offset = unit_offset
        self.weight = nn.Parameter((torch.zeros if unit_offset else torch.ones)(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias and kind != "rms" else None

    def forward(self, x: Tensor) -> Tensor:
        y = FUNCTIONS[self.kind](x, self.epsilon) * (1 + self.weight if self.unit_offset else self.weight)
        return y if self.bias is None else y + self.bias


class PlainNorm(nn.Module):
    """normalised(x), without gain and bias."""

    def __init__(self, kind: Norm, epsilon: float):
        super().__init__()
        self.kind = kind
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return FUNCTIONS[self.kind](x, self.epsilon)


def make_norm(kind: Norm, config: BlockConfig, width: int | None = None) -> nn.Module:
    """Build the norm of that kind over d_model, or over another width."""
    if kind == "none":
        return nn.Identity()
    if not config.norm_affine:
        return PlainNorm(kind, config.norm_epsilon)
    width = config.d_model if width is None else width
    return ScaledNorm(kind, width, config.norm_epsilon, config.norm_bias, config.norm_unit_offset)


def head_norm(config: BlockConfig, heads: int) -> ScaledNorm | PlainNorm:
    """Build the norm of queries or keys, over the units of a head or of all of them."""
    if not config.qk_norm_affine:
        return PlainNorm(config.qk_norm_kind, config.norm_epsilon)
    shapes = {"head": config.head_width, "each": (heads, config.head_width), "all": heads * config.head_width}
    shape = shapes[config.qk_norm_over]
    return ScaledNorm(config.qk_norm_kind, shape, config.norm_epsilon, config.qk_norm_bias, config.norm_unit_offset)
