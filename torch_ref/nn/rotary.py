"""Rotary positions (RoPE, Su et al. 2021): pairs of units of queries and keys are rotated by angles that grow with position."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jaxformer.config.blocks import BlockConfig, LinearScaling, Llama3Scaling, RotaryEmbedding, YarnScaling

Pairs = tuple[float, ...]
"""Number for each pair of units."""


@dataclass(frozen=True)
class Rotary:
    """Rotary settings, in float64. Of each pair, the first is for layers with full attention, the second for a sliding
    window.
    """

    interleaved: bool
    """True if units 2i and 2i + 1 are a pair; False if units i and i + R / 2 are."""
    angles: tuple[Pairs, Pairs]
    """Radians per token of each pair of units."""
    amplitudes: tuple[float, float]
    """Factors of the rotated units."""


def make_rotary(config: BlockConfig) -> Rotary | None:
    """Build the rotary settings of a configuration: computed once, in float64, and rounded once, where they are used."""
    if (rotary := config.rotary_embedding) is None:
        return None
    with torch.device("cpu"):  # numbers, also of a model that is made on meta
        angles, amplitude = scaled(base_angles(rotary.dim, rotary.base), rotary)
        local, local_amplitude = angles, amplitude
        if rotary.window_base is not None:
            local, local_amplitude = base_angles(rotary.dim, rotary.window_base), 1.0
    both = tuple(angles.tolist()), tuple(local.tolist())
    return Rotary(rotary.interleaved, both, (amplitude, local_amplitude))


def base_angles(dim: int, base: float) -> Tensor:
    """base^(-2i / dim): the first pair turns by one radian per token, the last by almost 1 / base."""
    return 1.0 / base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)


def scaled(angles: Tensor, rotary: RotaryEmbedding) -> tuple[Tensor, float]:
    """Scale the angles for longer contexts; return them and the amplitude."""
    match rotary.scaling:
        case LinearScaling() as scaling:
            return linear(angles, scaling), 1.0
        case Llama3Scaling() as scaling:
            return llama3(angles, scaling), 1.0
        case YarnScaling() as scaling:
            return yarn(angles, scaling, rotary.base)
    return angles, 1.0


def linear(angles: Tensor, scaling: LinearScaling) -> Tensor:
    """Divide all angles by the factor, as if positions were divided by it (linear scaling, Chen et al. 2023)."""
    return angles / scaling.factor


def llama3(angles: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Keep short waves and scale long ones, with a transition by how often a wave fits the original context (Llama 3.1)."""
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    fits = scaling.original_context * angles / (2 * math.pi)
    kept = ((fits - low) / (high - low)).clamp(0, 1)
    return torch.lerp(angles / scaling.factor, angles, kept)


def yarn(angles: Tensor, scaling: YarnScaling, base: float) -> tuple[Tensor, float]:
    """Scale the angles along a ramp over the pairs, and raise the amplitude (YaRN, Peng et al. 2023, sections 3.2 and 3.4)."""
    n, factor = len(angles), scaling.factor

    def pair_that_turns(times: float) -> float:
        """Return the index, a fraction, of the pair that turns this many times in the original context."""
        return n * math.log(scaling.original_context / (2 * math.pi * times)) / math.log(base)

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * n - 1)
    width = last - first if last != first else 0.001  # as in transformers
    ramp = ((torch.arange(n, dtype=torch.float64) - first) / width).clamp(0, 1)
    amplitude = scaling.attention_factor
    if amplitude is None:
        amplitude = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return torch.lerp(angles, angles / factor, ramp), amplitude


def waves(rotary: Rotary, positions: Tensor, windowed: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cosine and sine of every pair's angle at these positions: `#B T 1 R/2`."""
    angles = positions.to(dtype)[..., None, None] * torch.tensor(rotary.angles[windowed], dtype=dtype)
    amplitude = rotary.amplitudes[windowed]
    return angles.cos() * amplitude, angles.sin() * amplitude


def rotate(x: Tensor, rotary: Rotary, positions: Tensor, windowed: bool = False) -> Tensor:
    """Rotate each pair (a, b) of the first R units to (a cos - b sin, b cos + a sin), in float32 or wider; other units stay."""
    cos, sin = waves(rotary, positions, windowed, torch.promote_types(x.dtype, torch.float32))
    n = 2 * cos.shape[-1]
    turned, rest = x[..., :n].to(cos.dtype), x[..., n:]
    pairs = turned.unflatten(-1, (-1, 2) if rotary.interleaved else (2, -1))
    axis = -1 if rotary.interleaved else -2
    a, b = pairs.unbind(axis)
    turned = torch.stack([a * cos - b * sin, b * cos + a * sin], axis).flatten(-2)
    return torch.cat([turned.to(x.dtype), rest], -1)
