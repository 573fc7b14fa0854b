"""How far two arrays are apart, and what counts as equal.

Tier A decides in float64, where correct code differs by rounding noise alone. Tier B judges float32 against torch's own
rounding error. Element-wise tolerances and ULP counts say nothing near zero and are not used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxformer.errors import ParityError

Kind = Literal["activation", "gradient", "loss", "parameter"]

UNIT_ROUNDOFF = 2.0**-24
"""u of float32."""
NULL_GRADIENT = 1e-12
"""A float64 gradient below this part of the global rms is rounding noise around zero."""


@dataclass(frozen=True)
class Difference:
    """Distances of J from T: |J - T| / |T| in L2, and max |J - T| / rms(T)."""

    name: str
    relative: float
    peak: float

    def __str__(self) -> str:
        return f"{self.name}: relL2 {self.relative:.1e}, max/rms {self.peak:.1e}"


LINES: dict[Kind, tuple[float, float]] = {
    "activation": (1e-13, 1e-12),
    "gradient": (np.inf, 1e-12),
    "loss": (1e-13, 1e-13),
    "parameter": (np.inf, 1e-11),
}
"""Tier A: the largest relative and peak difference."""


def host(array: Any) -> np.ndarray:
    """A float array of either framework on the host."""
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def difference(name: str, ours: Any, reference: Any) -> Difference:
    """Distances over the finite entries; ParityError where shapes or NaN and infinity patterns differ."""
    j, t = host(ours), host(reference)
    if j.shape != t.shape:
        raise ParityError(f"{name}: shape {j.shape} against {t.shape}")
    j, t = (side.astype(np.float64, copy=False) for side in (j, t))
    finite = np.isfinite(t)
    if not np.array_equal(finite, np.isfinite(j)) or not np.array_equal(j[~finite], t[~finite], equal_nan=True):
        raise ParityError(
            f"{name}: NaN or infinity at other places, {int((~np.isfinite(j)).sum())} against {int((~finite).sum())}"
        )
    if not finite.all():
        j, t = j[finite], t[finite]
    if not t.size:
        return Difference(name, 0.0, 0.0)
    gap, size = j - t, np.linalg.norm(t)
    if size == 0:
        return Difference(name, *((0.0, 0.0) if not gap.any() else (np.inf, np.inf)))
    return Difference(name, float(np.linalg.norm(gap) / size), float(np.abs(gap).max() / (size / np.sqrt(t.size))))


def check_float64(name: str, ours: Any, reference: Any, kind: Kind = "activation") -> Difference:
    """Tier A: raise ParityError unless both sides are float64 and within the line of their kind."""
    for side, array in (("jax", host(ours)), ("torch", host(reference))):
        if array.dtype != np.float64:
            raise ParityError(f"{name}: {side} gave {array.dtype}, tier A compares float64")
    found = difference(name, ours, reference)
    relative, peak = LINES[kind]
    if not (found.relative <= relative and found.peak <= peak):
        allowed = f"{peak:.0e}" if relative == np.inf else f"{relative:.0e} and {peak:.0e}"
        raise ParityError(f"{found}; tier A allows {allowed}")
    return found


def check_float32(name: str, ours: Any, theirs: Any, truth: Any) -> float:
    """Tier B: |J - R| <= 4 |T - R| + 4 u |R| in L2, 8 for 4 in the max norm, with R torch's float64 result.

    Returns the larger ratio to its line; raises ParityError above 1.
    """
    return _check_rounding(name, ours, theirs, truth, factor=4.0, least=4 * UNIT_ROUNDOFF, tier="B")


def check_bfloat16(name: str, ours: Any, theirs: Any, truth: Any) -> float:
    """Tier C: the same with 2 |T - R| + 3e-5 |R|."""
    return _check_rounding(name, ours, theirs, truth, factor=2.0, least=3e-5, tier="C")


def _check_rounding(name: str, ours: Any, theirs: Any, truth: Any, *, factor: float, least: float, tier: str) -> float:
    j, t, r = (host(array).astype(np.float64) for array in (ours, theirs, truth))
    difference(name, ours, theirs)
    finite = np.isfinite(r)
    j, t, r = j[finite], t[finite], r[finite]
    worst = 0.0
    for norm, times in ((np.linalg.norm, 1), (lambda a: np.abs(a).max(initial=0.0), 2)):
        gap, line = norm(j - r), times * (factor * norm(t - r) + least * norm(r))
        if not gap <= line:
            raise ParityError(f"{name}: error {gap:.1e} against torch's {norm(t - r):.1e}; tier {tier} allows {line:.1e}")
        worst = max(worst, float(gap / line) if line else 0.0)
    return worst


def check_gradients(ours: Mapping[str, Any], reference: Mapping[str, Any]) -> list[str]:
    """Tier A for every gradient by name; returns the NULL ones, which are zero but for rounding on both sides.

    What is null in torch must be null in JAX, and the other way round.
    """
    if set(ours) != set(reference):
        raise ParityError(f"gradients of different tensors: {sorted(set(ours) ^ set(reference))}")
    pairs = {name: (host(ours[name]), host(reference[name])) for name in reference}
    everything = np.concatenate([theirs.ravel() for _, theirs in pairs.values()])
    noise = NULL_GRADIENT * float(np.sqrt(np.mean(np.square(everything))))
    null = []
    for name, (mine, theirs) in pairs.items():
        if np.abs(theirs).max(initial=0.0) <= noise and np.abs(mine).max(initial=0.0) <= noise:
            null.append(name)
        else:
            check_float64(name, mine, theirs, "gradient")
    return null
