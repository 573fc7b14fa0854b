"""Rotary positions (RoPE, Su et al. 2021): pairs of units of queries and keys are rotated by angles that grow with position."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxformer.config.blocks import BlockConfig, LinearScaling, Llama3Scaling, RotaryEmbedding, YarnScaling
from jaxformer.nn.precision import wide, wide_dtype

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
    angles, amplitude = scaled(base_angles(rotary.dim, rotary.base), rotary)
    local, local_amplitude = angles, amplitude
    if rotary.window_base is not None:
        local, local_amplitude = base_angles(rotary.dim, rotary.window_base), 1.0
    both = tuple(angles.tolist()), tuple(local.tolist())
    return Rotary(rotary.interleaved, both, (amplitude, local_amplitude))


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


def waves(
    rotary: Rotary, positions: Int[Array, "#B T"], windowed: bool | Bool[Array, ""], dtype: np.dtype
) -> tuple[Float[Array, "#B T 1 P"], Float[Array, "#B T 1 P"]]:
    """Return the cosine and sine of every pair's angle at these positions."""
    full, local = (jnp.asarray(angles, dtype) for angles in rotary.angles)
    amplitude, local_amplitude = (jnp.asarray(number, dtype) for number in rotary.amplitudes)
    angles = positions.astype(dtype)[..., None, None] * jnp.where(windowed, local, full)[None, None, None]
    amplitude = jnp.where(windowed, local_amplitude, amplitude)
    return jnp.cos(angles) * amplitude, jnp.sin(angles) * amplitude


def rotate(
    x: Float[Array, "B T N H"], rotary: Rotary, positions: Int[Array, "#B T"], windowed: bool | Bool[Array, ""] = False
) -> Float[Array, "B T N H"]:
    """Rotate each pair (a, b) of the first R units to (a cos - b sin, b cos + a sin), in float32 or wider; other units stay."""
    cos, sin = waves(rotary, positions, windowed, wide_dtype(x.dtype))
    n = 2 * cos.shape[-1]
    turned, rest = wide(x[..., :n]), x[..., n:]
    pairs = turned.reshape(*turned.shape[:-1], *((-1, 2) if rotary.interleaved else (2, -1)))
    axis = -1 if rotary.interleaved else -2
    a, b = (jax.lax.index_in_dim(pairs, i, axis, keepdims=False) for i in (0, 1))
    turned = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis).reshape(turned.shape)
    return jnp.concatenate([turned.astype(x.dtype), rest], -1)
