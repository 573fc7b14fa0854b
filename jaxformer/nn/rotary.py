"""Rotary positions (RoPE, Su et al. 2021): pairs of units of queries and keys are rotated by angles that grow with position."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    RotaryEmbedding,
    YarnScaling,
)
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.nn.precision import wide, wide_dtype

Pairs = tuple[float, ...]
"""Number for each pair of units."""
Positions = Int[Array, "#B T"] | Float[Array, "#B T 2"]
"""Position of each token: one number, or a row and a column, each of which turns half of the pairs."""


@dataclass(frozen=True)
class LongAngles:
    """LongRoPE: other angles, for all positions, in calls with positions beyond the original context."""

    original_context: int
    angles: Pairs


@dataclass(frozen=True)
class GrowingBase:
    """Dynamic NTK scaling: angles by a base that grows with the longest position of a call."""

    original_context: int
    factor: float
    exponents: Pairs
    """Exponent of the growth in each pair's angle."""


Longer = LongAngles | GrowingBase


@dataclass(frozen=True)
class Rotary:
    """Rotary settings, in float64. Of each pair, the first is for layers with full attention, the second for a sliding
    window.
    """

    interleaved: bool
    """True if units 2i and 2i + 1 are a pair; False if units i and i + R / 2 are."""
    reversed: bool
    """True if pairs turn by the negative angles."""
    angles: tuple[Pairs, Pairs]
    """Radians per token of each pair of units."""
    amplitudes: tuple[float, float]
    """Factors of the rotated units."""
    longer: tuple[Longer | None, Longer | None]
    """Changes of the angles in calls with positions beyond the original context; None: no change."""


def make_rotary(config: BlockConfig) -> Rotary | None:
    """Build the rotary settings of a configuration: computed once, in float64, and rounded once, where they are used."""
    if (rotary := config.rotary_embedding) is None:
        return None
    angles, amplitude = scaled(base_angles(rotary.dim // rotary.axes, rotary.base), rotary)
    longer = make_longer(rotary)
    local, local_amplitude, local_longer = angles, amplitude, longer
    if rotary.window_base is not None:
        local, local_amplitude, local_longer = base_angles(rotary.dim // rotary.axes, rotary.window_base), 1.0, None
    both = tuple(angles.tolist()) * rotary.axes, tuple(local.tolist()) * rotary.axes
    return Rotary(rotary.interleaved, rotary.reversed, both, (amplitude, local_amplitude), (longer, local_longer))


def base_angles(dim: int, base: float) -> Float[np.ndarray, " P"]:
    """base^(-2i / dim): the first pair turns by one radian per token, the last by almost 1 / base."""
    return base ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)


def scaled(angles: np.ndarray, rotary: RotaryEmbedding) -> tuple[np.ndarray, float]:
    """Scale the angles for longer contexts; return them and the amplitude."""
    match rotary.scaling:
        case LinearScaling() as scaling:
            return linear(angles, scaling), 1.0
        case Llama3Scaling() as scaling:
            return llama3(angles, scaling), 1.0
        case YarnScaling() as scaling:
            return yarn(angles, scaling, rotary.base)
        case LongRopeScaling() as scaling:
            return divided(angles, scaling.short_factors), longrope_amplitude(scaling)
        case ProportionalScaling() as scaling:
            return proportional(angles, scaling), 1.0
    return angles, 1.0


def linear(angles: np.ndarray, scaling: LinearScaling) -> np.ndarray:
    """Divide all angles by the factor, as if positions were divided by it (linear scaling, Chen et al. 2023)."""
    return angles / scaling.factor


def llama3(angles: np.ndarray, scaling: Llama3Scaling) -> np.ndarray:
    """Keep short waves and scale long ones, with a transition by how often a wave fits the original context (Llama 3.1)."""
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    fits = scaling.original_context * angles / (2 * math.pi)
    kept = np.clip((fits - low) / (high - low), 0, 1)
    return angles * (kept + (1 - kept) / scaling.factor)


def yarn(angles: np.ndarray, scaling: YarnScaling, base: float) -> tuple[np.ndarray, float]:
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
    ramp = np.clip((np.arange(n) - first) / width, 0, 1)
    amplitude = scaling.attention_factor
    if amplitude is None:
        amplitude = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return angles * (1 - ramp + ramp / factor), amplitude


def divided(angles: np.ndarray, factors: tuple[float, ...]) -> np.ndarray:
    """Divide each pair's angle by its own factor (LongRoPE, Ding et al. 2024)."""
    return angles / np.asarray(factors)


def proportional(angles: np.ndarray, scaling: ProportionalScaling) -> np.ndarray:
    """Divide the angles of the first pairs by the factor; the others do not turn (Gemma 4)."""
    return np.where(np.arange(len(angles)) < scaling.pairs, angles / scaling.factor, 0.0)


def longrope_amplitude(scaling: LongRopeScaling) -> float:
    """sqrt(1 + ln(factor) / ln(original context)), unless it is given (LongRoPE, as in Phi-3)."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_context)) if scaling.factor > 1 else 1.0


def make_longer(rotary: RotaryEmbedding) -> Longer | None:
    """Build what changes the angles in calls with positions beyond the original context."""
    match rotary.scaling:
        case LongRopeScaling() as scaling:
            angles = divided(base_angles(rotary.dim, rotary.base), scaling.long_factors)
            return LongAngles(scaling.original_context, tuple(angles.tolist()))
        case DynamicScaling() as scaling:
            exponents = tuple(2 * i / (rotary.dim - 2) for i in range(rotary.dim // 2))
            return GrowingBase(scaling.original_context, scaling.factor, exponents)
    return None


def patch_positions(config: VisionEncoderConfig) -> Float[Array, "1 T 2"] | None:
    """Return the row and the column of each patch's middle, from -2 pi to 2 pi, and 0 for the tokens before the patches.

    These angles are those of the first pair of each half (Siméoni et al. 2025). None without rotary positions.
    """
    if config.rotary == "none":
        return None
    sides = (2 * math.pi * ((2 * np.arange(n) + 1) / n - 1) for n in config.grid)
    patches = np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, 2)
    return jnp.asarray(np.concatenate([np.zeros((config.first_patch, 2)), patches])[None])


def angles_of(pairs: Pairs, longer: Longer | None, positions: Positions, dtype: np.dtype) -> Float[Array, " P"]:
    """Return the angles of a call with these positions, of which the largest counts."""
    angles = jnp.asarray(pairs, dtype)
    match longer:
        case LongAngles():
            return jnp.where(positions.max() >= longer.original_context, jnp.asarray(longer.angles, dtype), angles)
        case GrowingBase():
            length = jnp.maximum(positions.max() + 1, longer.original_context).astype(dtype)
            growth = longer.factor * length / longer.original_context - (longer.factor - 1)
            return angles * growth ** -jnp.asarray(longer.exponents, dtype)
    return angles


def waves(
    rotary: Rotary, positions: Positions, windowed: bool | Bool[Array, ""], dtype: np.dtype
) -> tuple[Float[Array, "#B T 1 P"], Float[Array, "#B T 1 P"]]:
    """Return the cosine and sine of every pair's angle at these positions."""
    full, local = (angles_of(*each, positions, dtype) for each in zip(rotary.angles, rotary.longer, strict=True))
    amplitude, local_amplitude = (jnp.asarray(number, dtype) for number in rotary.amplitudes)
    own = positions[..., None] if positions.ndim == 2 else jnp.repeat(positions, len(full) // positions.shape[-1], -1)
    angles = own.astype(dtype)[:, :, None] * jnp.where(windowed, local, full)[None, None, None]
    amplitude = jnp.where(windowed, local_amplitude, amplitude)
    return jnp.cos(angles) * amplitude, jnp.sin(angles) * (-amplitude if rotary.reversed else amplitude)


def rotate(
    x: Float[Array, "B T N H"],
    rotary: Rotary,
    positions: Positions,
    windowed: bool | Bool[Array, ""] = False,
    rotated: Bool[Array, ""] | None = None,
) -> Float[Array, "B T N H"]:
    """Rotate each pair (a, b) of the first R units to (a cos - b sin, b cos + a sin), in float32 or wider; other units stay.

    All stay in a layer that is not `rotated`; None: it is.
    """
    cos, sin = waves(rotary, positions, windowed, wide_dtype(x.dtype))
    n = 2 * cos.shape[-1]
    turned, rest = wide(x[..., :n]), x[..., n:]
    pairs = turned.reshape(*turned.shape[:-1], *((-1, 2) if rotary.interleaved else (2, -1)))
    axis = -1 if rotary.interleaved else -2
    a, b = (jax.lax.index_in_dim(pairs, i, axis, keepdims=False) for i in (0, 1))
    turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis).reshape(turned.shape)
    turned = jnp.concatenate([turned.astype(x.dtype), rest], -1)
    return turned if rotated is None else jnp.where(rotated, turned, x)
