"""Normalisation of the last axis: pure functions first, then modules that own a gain and a bias.

Statistics are computed in float32 or wider.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from jaxformer.config.blocks import BlockConfig, Norm
from jaxformer.nn.precision import wide


def _center(x):
    return x - x.mean(-1, keepdims=True)


def layer_norm(x: Float[Array, "... D"], epsilon: float) -> Float[Array, "... D"]:
    """(x - mean) / sqrt(var + epsilon) with the two-pass, biased variance (Ba et al. 2016; torch's)."""
    centered = _center(wide(x))
    variance = jnp.square(centered).mean(-1, keepdims=True)
    return (centered * jax.lax.rsqrt(variance + epsilon)).astype(x.dtype)


def std_norm(x: Float[Array, "... D"], epsilon: float) -> Float[Array, "... D"]:
    """(x - mean) / (std + epsilon) with the unbiased standard deviation; a constant row gives zeros, and zero gradients through
    std.
    """
    centered = _center(wide(x))
    variance = jnp.square(centered).sum(-1, keepdims=True) / max(x.shape[-1] - 1, 1)
    constant = variance == 0
    std = jnp.where(constant, jnp.zeros_like(variance), jnp.sqrt(jnp.where(constant, jnp.ones_like(variance), variance)))
    return (centered / (std + epsilon)).astype(x.dtype)


def rms_norm(x: Float[Array, "... D"], epsilon: float) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019, equation 4)."""
    y = wide(x)
    return (y * jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + epsilon)).astype(x.dtype)


FUNCTIONS = {"layer": layer_norm, "std": std_norm, "rms": rms_norm}


class ScaledNorm(nnx.Module):
    """scale * normalised(x) + bias; with `unit_offset`, the gain is 1 + scale. RMSNorm has no bias; others may have one.

    `width` is the size of the last axis, or the shape of the last two, of which each row then has a gain of its own.
    """

    def __init__(self, kind: Norm, width: int | tuple[int, int], epsilon: float, bias: bool = True, unit_offset: bool = False):
        self.kind = kind
        self.epsilon = epsilon
        self.unit_offset = unit_offset
        self.scale = nnx.Param((jnp.zeros if unit_offset else jnp.ones)(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32)) if bias and kind != "rms" else None

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        scale = self.scale[...]
        leading = (1,) * (x.ndim - scale.ndim)
        y, scale = FUNCTIONS[self.kind](x, self.epsilon), scale.reshape(*leading, *scale.shape)
        y = (wide(y) * (1 + wide(scale))).astype(y.dtype) if self.unit_offset else y * scale
        return y if self.bias is None else y + self.bias[...].reshape(scale.shape)


class PlainNorm(nnx.Module):
    """normalised(x), without gain and bias."""

    def __init__(self, kind: Norm, epsilon: float):
        self.kind = kind
        self.epsilon = epsilon

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        return FUNCTIONS[self.kind](x, self.epsilon)


class Identity(nnx.Module):
    """Module that returns its input, in place of a norm."""

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        return x


AnyNorm = ScaledNorm | PlainNorm | Identity
"""Module in the place of a norm."""


def make_norm(kind: Norm, config: BlockConfig, width: int | None = None) -> AnyNorm:
    """Build the norm of that kind over d_model, or over another width."""
    if kind == "none":
        return Identity()
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
