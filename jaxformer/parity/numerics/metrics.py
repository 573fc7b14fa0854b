"""Error measures between two arrays, and the tolerances within which they count as equal.

Tier A compares in float64, where correct code differs by rounding noise alone. Tier B compares float32 with torch's own
rounding error as the measure. Element-wise tolerances and ULP counts mean nothing near zero and are not used.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxformer.convert.host import host
from jaxformer.errors import ParityError
from jaxformer.parity.numerics.blocks import gap_between, largest

Kind = Literal["activation", "gradient", "loss", "parameter"]

UNIT_ROUNDOFF = 2.0**-24
"""Unit roundoff u of float32."""
NULL_GRADIENT = 1e-12
"""A float64 gradient below this fraction of the global rms is rounding noise around zero."""
HUGE = 1e8
"""Numbers this large are usually masks, beside which errors of the other entries would not count: those are also compared
alone."""

TOLERANCES: dict[Kind, tuple[float, float]] = {
    "activation": (1e-13, 1e-12),
    "gradient": (np.inf, 1e-12),
    "loss": (1e-13, 1e-13),
    "parameter": (np.inf, 1e-11),
}
"""Tolerances of tier A by kind: largest relL2 and max/rms."""
PARAMETER = TOLERANCES["parameter"][1]
LOSS = 1e-12
"""Tolerance of tier A for a loss during training: largest relative error."""
EXPLAINED = 1e-12
"""Largest relL2 at which a formula counts as explaining an array."""
FLOAT32_BITS = 2.0**29
"""Ratio of rounding in float32 to rounding in float64."""
FACTOR = 4.0
"""An error may be this many times torch's own rounding error in L2, and twice as many times in the max norm."""


@dataclass(frozen=True)
class Error:
    """Error of jax's array J against torch's array T: over all entries or over those that are not huge, whichever is larger."""

    relative: float
    """relL2, |J - T| / |T|; infinite if shapes, NaN or infinities differ."""
    peak: float
    """max/rms, max |J - T| / rms(T)."""
    rounding: float = 0.0
    """relL2 by which torch's own rounding perturbs T; 0 in a model where that is far below the tolerances."""
    rounding_peak: float = 0.0
    """max/rms by which torch's own rounding perturbs T."""

    def allowed(self, kind: Kind) -> tuple[float, float]:
        """Return the largest relL2 and max/rms that tier A allows: the tolerances, relaxed by torch's own rounding error."""
        relative, peak = TOLERANCES[kind]
        return max(relative, FACTOR * self.rounding), max(peak, 2 * FACTOR * self.rounding_peak)

    def off(self, kind: Kind) -> float:
        """Return the error in units of its tolerance: of relL2, or of max/rms where any relL2 is allowed, as for gradients."""
        relative, peak = self.allowed(kind)
        return self.peak / peak if relative == math.inf else self.relative / relative

    def __str__(self) -> str:
        return f"relL2 {self.relative:.1e}, max/rms {self.peak:.1e}"


EQUAL, DIFFERENT = Error(0.0, 0.0), Error(math.inf, math.inf)


def over(found: Error, kind: Kind) -> bool:
    """True if an error is over the tolerance of tier A, relaxed by torch's own rounding error."""
    relative, peak = found.allowed(kind)
    return not (found.relative <= relative and found.peak <= peak)


@dataclass(frozen=True)
class Noise:
    """Size of the perturbation of torch's array by rounding alone: over all entries, or over those that are not huge."""

    size: float
    """L2 norm of the perturbation."""
    peak: float
    """Largest absolute value of the perturbation."""

    @classmethod
    def between(cls, perturbed: np.ndarray, reference: np.ndarray, valid: np.ndarray | bool = True) -> "Noise":
        """Measure the noise of the `valid` entries; infinite if one of them became NaN or infinity.

        Huge entries whose relative error is larger than that of the others are not masks: their relative error then counts for
        all entries.
        """
        sides, groups = (as_float64(reference), as_float64(perturbed)), entry_groups(reference)
        usual, *others = (
            [part(side, those if valid is True else np.asarray(those & valid)) for side in sides]
            for those in (usual_entries(reference, groups), *groups[:-1])
        )
        with np.errstate(over="ignore", invalid="ignore"):
            size, peak = gap_between(*usual)
            norm = float(np.linalg.norm(usual[0])) if others else 0.0
            for torch, jax in others if norm else ():
                relative, highest = _apart(*_scaled(torch, jax))
                size, peak = max(size, relative * norm), max(peak, highest * norm / float(np.sqrt(usual[0].size)))
        return cls(size, peak) if np.isfinite(size + peak) else cls(np.inf, np.inf)

    def of(self, reference: np.ndarray) -> tuple[float, float]:
        """Return relL2 and max/rms of the noise, relative to the array's size; (0, 0) if that is 0, or too large to be
        squared."""
        if self == EXACT:
            return 0.0, 0.0
        usual = part(reference, usual_entries(reference, entry_groups(reference)))
        with np.errstate(over="ignore"):
            size = float(np.linalg.norm(usual))
        return (self.size / size, self.peak / size * float(np.sqrt(usual.size))) if 0 < size < np.inf else (0.0, 0.0)

    def explains(self, jax: np.ndarray, reference: np.ndarray) -> bool:
        """True if rounding explains that jax's array is not 0 where all of torch's array is."""
        return not reference.any() and largest(jax) <= 2 * FACTOR * self.peak


EXACT = Noise(0.0, 0.0)
INCONCLUSIVE = 1e-6
"""Perturbation by rounding above which an array is not judged by float64."""


def as_float64(array: np.ndarray) -> np.ndarray:
    """Cast an array to float64, or to complex128 if it is complex; True becomes 1."""
    return array.astype(np.result_type(array.dtype, np.float64), copy=False)


def entry_groups(reference: np.ndarray) -> list[np.ndarray]:
    """Return masks of the entries of T that are compared together: all finite entries, and, if some of these are huge, those
    that are not."""
    if largest(reference) < HUGE:
        return [np.broadcast_to(True, reference.shape)]
    usual = np.asarray(np.abs(reference) < HUGE)
    finite = np.asarray(np.isfinite(reference))
    return [finite, usual] if 0 < usual.sum() < finite.sum() else [finite]


def usual_entries(reference: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """Return the group among `entry_groups` that measures an array's size: entries that are not huge, unless all of them are
    0."""
    return groups[-1] if part(reference, groups[-1]).any() else groups[0]


def part(array: np.ndarray, those: np.ndarray) -> np.ndarray:
    """Select entries by mask, without a copy if all are selected."""
    return array if those.all() else array[those]


def difference(name: str, jax: Any, reference: Any, rounding: Noise = EXACT) -> Error:
    """Return the error of the finite entries; ParityError if shapes or the patterns of NaN and infinity differ."""
    j, t = host(jax), host(reference)
    if j.shape != t.shape:
        raise ParityError(f"{name}: shape {j.shape} against {t.shape}")
    j, t = as_float64(j), as_float64(t)
    if not np.isfinite(largest(t) + largest(j)):
        finite = np.isfinite(t)
        if not np.array_equal(finite, np.isfinite(j)) or not np.array_equal(j[~finite], t[~finite], equal_nan=True):
            raise ParityError(
                f"{name}: NaN or infinity at other places, {int((~np.isfinite(j)).sum())} against {int((~finite).sum())}"
            )
    with np.errstate(over="ignore"):
        relative, peak = zip(*(_apart(*_scaled(part(t, those), part(j, those))) for those in entry_groups(t)), strict=True)
    return Error(max(relative), max(peak), *rounding.of(t))


def error(jax: Any, torch: Any, noise: float = 0.0, rounding: Noise = EXACT) -> Error:
    """Return the error of jax's array: infinite if shapes, NaN or infinities differ, zero if both sides are at most `noise` or
    if rounding explains the difference."""
    if (noise and is_null(jax, torch, noise)) or (rounding != EXACT and rounding.explains(jax, torch)):
        return EQUAL
    try:
        return difference("", jax, torch, rounding)
    except ParityError:
        return DIFFERENT


def distance(jax: Any, reference: Any) -> float:
    """Return relL2; infinite if shapes, NaN or infinities differ."""
    return error(jax, reference).relative


def _scaled(reference: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Divide all arrays by one power of two if there are huge numbers, so that none is too large to be squared."""
    top = largest(reference)
    return tuple(array / 2.0 ** (math.frexp(top)[1] - 1) if top >= HUGE else array for array in (reference, *others))


def _apart(t: np.ndarray, j: np.ndarray) -> tuple[float, float]:
    """Return relL2 and max/rms."""
    (off, peak), size = gap_between(t, j), float(np.linalg.norm(t))
    if size == 0:
        return (np.inf, np.inf) if peak else (0.0, 0.0)
    return off / size, peak / (size / math.sqrt(t.size))


def check_float64(name: str, jax: Any, reference: Any, kind: Kind = "activation", noise: Noise = EXACT) -> Error:
    """Check tier A: raise ParityError unless both sides are float64 and within the tolerance of their kind, relaxed by
    `noise`."""
    for side, array in (("jax", host(jax)), ("torch", host(reference))):
        if array.dtype != np.float64:
            raise ParityError(f"{name}: {side} gave {array.dtype}, tier A compares float64")
    found = difference(name, jax, reference, noise)
    if over(found, kind):
        relative, peak = found.allowed(kind)
        both = f"{peak:.0e}" if relative == np.inf else f"{relative:.0e} and {peak:.0e}"
        raise ParityError(f"{name}: {found}; tier A allows {both}")
    return found


def check_float32(name: str, jax: Any, torch: Any, truth: Any, noise: Noise = EXACT, factor: float = 2.0) -> float:
    """Check tier B: |J - R| <= 2 |T - R| + 4 u |R| in L2, twice that in the max norm, with R torch's float64 result.

    The measure |T - R| is a single draw of rounding: `noise`, by which rounding perturbs torch in float64, scaled to float32,
    replaces it if larger. Returns the larger ratio of an error to its tolerance; raises ParityError if it is above 1.
    """
    in_float32 = Noise(noise.size * FLOAT32_BITS, noise.peak * FLOAT32_BITS) if np.isfinite(noise.size) else EXACT
    return _check_rounding("B", name, (jax, torch, truth), factor, 4 * UNIT_ROUNDOFF, in_float32)


def check_bfloat16(name: str, jax: Any, torch: Any, truth: Any) -> float:
    """Check tier C: as tier B, with 2 |T - R| + 3e-5 |R|."""
    return _check_rounding("C", name, (jax, torch, truth), 2.0, 3e-5)


def _check_rounding(
    tier: str, name: str, arrays: tuple[Any, Any, Any], factor: float, least: float, noise: Noise = EXACT
) -> float:
    jax, torch, truth = (as_float64(host(array)) for array in arrays)
    difference(name, jax, torch)
    worst = 0.0
    for those in entry_groups(truth):
        r, j, t = _scaled(*(part(side, those) for side in (truth, jax, torch)))
        # Groups with huge entries are scaled, and the noise is not.
        known = noise if largest(part(truth, those)) < HUGE else EXACT
        for norm, times, usual in ((np.linalg.norm, 1, known.size), (largest, 2, known.peak)):
            off, most = norm(j - r), times * (factor * max(norm(t - r), usual) + least * norm(r))
            if not off <= most:
                ratio = f"R {off / norm(t - r):.1f}" if norm(t - r) else "R infinite"
                raise ParityError(
                    f"{name}: error {off:.1e} against torch's {norm(t - r):.1e}, {ratio}; tier {tier} allows {most:.1e}"
                )
            worst = max(worst, float(off / most) if most else 0.0)
    return worst


def rounding_ratio(jax: Any, torch: Any, truth: Any) -> float:
    """Return R = |J - R64| / |T - R64| in L2, the error of jax's output in units of torch's; 1 if neither has an error."""
    r, j, t = (as_float64(host(array)) for array in (truth, jax, torch))
    those = entry_groups(r)[-1]
    r, j, t = _scaled(*(part(side, those) for side in (r, j, t)))
    off, measure = float(np.linalg.norm(j - r)), float(np.linalg.norm(t - r))
    return off / measure if measure else (math.inf if off else 1.0)


def check_gradients(
    jax: Mapping[str, Any], reference: Mapping[str, Any], rounding: Mapping[str, Noise] | None = None
) -> list[str]:
    """Check tier A for every gradient by name; return the names of NULL ones, which are rounding noise around zero on both
    sides.

    A gradient that is null in torch must be null in JAX, and vice versa.
    """
    if set(jax) != set(reference):
        raise ParityError(f"gradients of different tensors: {sorted(set(jax) ^ set(reference))}")
    pairs = {name: (host(jax[name]), host(reference[name])) for name in reference}
    noise = NULL_GRADIENT * rms(torch for _, torch in pairs.values())
    null = []
    for name, (mine, torch) in pairs.items():
        perturbed = (rounding or {}).get(name, EXACT)
        if is_null(mine, torch, noise) or perturbed.explains(mine, torch):
            null.append(name)
        else:
            check_float64(name, mine, torch, "gradient", perturbed)
    return null


def rms(arrays: Iterable[np.ndarray]) -> float:
    """Return the root mean square over all entries of all arrays, huge ones left out."""
    total, count = 0.0, 0
    for array in arrays:
        usual = array if largest(array) < HUGE else array[~(np.abs(array) >= HUGE)]
        total, count = total + float(np.linalg.norm(usual)) ** 2, count + usual.size
    return float(np.sqrt(total / count)) if count else 0.0


def is_null(jax: np.ndarray, torch: np.ndarray, noise: float) -> bool:
    """True if both gradients are no more than rounding noise around zero."""
    return largest(torch) <= noise and largest(jax) <= noise
