"""Differences no larger than the rounding of a constant to float32."""

import numpy as np

from jaxformer.parity.numerics.metrics import UNIT_ROUNDOFF, distance
from jaxformer.parity.run.isolated import Mismatch
from jaxformer.parity.run.trace import Traced

OWN_FACTORS = 1e-2
"""How near a difference is to factors of rows, and how much these differ, where it comes from them."""


def may_be_float32(traced: Traced, mismatch: Mismatch) -> bool:
    """Whether a constant that one side rounds to float32 may be why, whichever of the module's biases is added behind it."""
    own = traced.weights.items() if mismatch.child is None else ()
    path, width = traced.pairs[mismatch.owner].path, mismatch.torch.shape[-1:]
    biases = [array for name, array in own if name.rpartition(".")[0] == path and array.shape == width]
    return all(is_rounded_constant(mismatch.jax, mismatch.torch, bias) for bias in (0.0, *biases))


def is_rounded_constant(ours: np.ndarray, theirs: np.ndarray, bias: np.ndarray | float = 0.0) -> bool:
    """Whether a constant that one side rounds to float32 may be all: no entry is off by more than that, and rows are not each
    off by a factor of their own, as another epsilon makes them. `bias` is added behind it."""
    if ours.shape != theirs.shape or not theirs.ndim or {ours.dtype.kind, theirs.dtype.kind} != {"f"}:
        return False
    off, scaled = ours - theirs, theirs - bias
    largest = 2 * UNIT_ROUNDOFF * np.abs(theirs).max(initial=0.0)
    if not np.isfinite(off).all() or not 0 < np.abs(off).max(initial=0.0) <= largest:
        return False
    size = np.square(scaled).sum(-1, keepdims=True)
    factors = (off * scaled).sum(-1, keepdims=True) / np.where(size, size, 1.0)
    own = distance(factors * scaled, off) < OWN_FACTORS
    return not (own and np.ptp(factors) > OWN_FACTORS * np.abs(factors).max())
