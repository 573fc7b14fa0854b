"""How far two arrays are apart, and what counts as equal.

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

Kind = Literal["activation", "gradient", "loss", "parameter"]

UNIT_ROUNDOFF = 2.0**-24
"""u of float32."""
NULL_GRADIENT = 1e-12
"""A float64 gradient below this part of the global rms is rounding noise around zero."""
HUGE = 1e8
"""Numbers so large are usually masks. Beside them no error of the others would count: these are compared by themselves too."""

TOLERANCES: dict[Kind, tuple[float, float]] = {
    "activation": (1e-13, 1e-12),
    "gradient": (np.inf, 1e-12),
    "loss": (1e-13, 1e-13),
    "parameter": (np.inf, 1e-11),
}
"""Tier A: the largest relL2 and max/rms."""
PARAMETER = TOLERANCES["parameter"][1]
LOSS = 1e-12
"""Tier A: the largest relative error of a loss during training."""
EXPLAINED = 1e-12
"""The largest relL2 at which a formula gives an array."""
FLOAT32_BITS = 2.0**29
"""How much larger rounding is in float32 than in float64."""
FACTOR = 4.0
"""An error may be this many times torch's own rounding error in L2, and twice as many times in the max norm."""


@dataclass(frozen=True)
class Error:
    """How far J, an array of JAX's, is from T, torch's: of all entries or of those that are not huge, the larger one."""

    relative: float
    """relL2, |J - T| / |T|; infinite where shapes or NaN do not agree."""
    peak: float
    """max/rms, max |J - T| / rms(T)."""
    rounding: float = 0.0
    """relL2 by which torch's own rounding perturbs T; 0 in a model where that is far below the tolerances."""
    rounding_peak: float = 0.0
    """The same as max/rms."""

    def allowed(self, kind: Kind) -> tuple[float, float]:
        """The largest relL2 and max/rms in tier A: the tolerances, or what rounding relaxes them to."""
        relative, peak = TOLERANCES[kind]
        return max(relative, FACTOR * self.rounding), max(peak, 2 * FACTOR * self.rounding_peak)

    def off(self, kind: Kind) -> float:
        """In units of the tolerance: relL2, or max/rms where any relL2 is allowed, as of gradients."""
        relative, peak = self.allowed(kind)
        return self.peak / peak if relative == math.inf else self.relative / relative

    def __str__(self) -> str:
        return f"relL2 {self.relative:.1e}, max/rms {self.peak:.1e}"


EQUAL, DIFFERENT = Error(0.0, 0.0), Error(math.inf, math.inf)


def over(found: Error, kind: Kind) -> bool:
    """Whether an error is over its tolerance: tier A's, or the one that torch's own rounding relaxes."""
    relative, peak = found.allowed(kind)
    return not (found.relative <= relative and found.peak <= peak)


@dataclass(frozen=True)
class Noise:
    """How far rounding alone perturbs an array of torch's: all of it, or beside huge entries the others."""

    size: float
    """L2."""
    peak: float
    """The largest absolute value."""

    @classmethod
    def between(cls, perturbed: np.ndarray, reference: np.ndarray, valid: np.ndarray | bool = True) -> "Noise":
        """Of the `valid` entries; infinite where one of them became NaN or infinity.

        Huge entries that differ more, for their size, than the others are not masks: their relative error counts for all.
        """
        sides, groups = (as_float64(reference), as_float64(perturbed)), entry_groups(reference)
        usual, *others = (
            [part(side, np.asarray(those & valid)) for side in sides]
            for those in (usual_entries(reference, groups), *groups[:-1])
        )
        with np.errstate(over="ignore", invalid="ignore"):
            gap, norm = usual[1] - usual[0], float(np.linalg.norm(usual[0])) if others else 0.0
            size, peak = float(np.linalg.norm(gap)), float(np.abs(gap).max(initial=0.0))
            for theirs, ours in others if norm else ():
                relative, highest = _apart(*_scaled(theirs, ours))
                size, peak = max(size, relative * norm), max(peak, highest * norm / float(np.sqrt(gap.size)))
        return cls(size, peak) if np.isfinite(size + peak) else cls(np.inf, np.inf)

    def of(self, reference: np.ndarray) -> tuple[float, float]:
        """relL2 and max/rms, relative to the array or to a part of it; (0, 0) where it is 0, or too large to be squared."""
        if self == EXACT:
            return 0.0, 0.0
        usual = part(reference, usual_entries(reference, entry_groups(reference)))
        with np.errstate(over="ignore"):
            size = float(np.linalg.norm(usual))
        return (self.size / size, self.peak / size * float(np.sqrt(usual.size))) if 0 < size < np.inf else (0.0, 0.0)

    def explains(self, ours: np.ndarray, reference: np.ndarray) -> bool:
        """Whether rounding explains that jax's array is not 0 where all of torch's is."""
        return not reference.any() and bool(np.abs(ours).max(initial=0.0) <= 2 * FACTOR * self.peak)


EXACT = Noise(0.0, 0.0)


def as_float64(array: np.ndarray) -> np.ndarray:
    """As float64, or complex128: what is true is 1."""
    return array.astype(np.result_type(array.dtype, np.float64), copy=False)


def entry_groups(reference: np.ndarray) -> list[np.ndarray]:
    """Which entries of T are compared together: all finite ones; and where some of these are huge, the others once more."""
    usual = np.asarray(np.abs(reference) < HUGE)
    if usual.all():
        return [usual]
    finite = np.asarray(np.isfinite(reference))
    return [finite, usual] if 0 < usual.sum() < finite.sum() else [finite]


def usual_entries(reference: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """By which of its `entry_groups` an array's size is measured: the entries that are not huge, if they are not all zero."""
    return groups[-1] if part(reference, groups[-1]).any() else groups[0]


def part(array: np.ndarray, those: np.ndarray) -> np.ndarray:
    """Those entries; no copy of all."""
    return array if those.all() else array[those]


def difference(name: str, ours: Any, reference: Any, rounding: Noise = EXACT) -> Error:
    """The error of the finite entries; ParityError where shapes or NaN and infinity patterns differ."""
    j, t = host(ours), host(reference)
    if j.shape != t.shape:
        raise ParityError(f"{name}: shape {j.shape} against {t.shape}")
    j, t = as_float64(j), as_float64(t)
    finite = np.isfinite(t)
    if not np.array_equal(finite, np.isfinite(j)) or not np.array_equal(j[~finite], t[~finite], equal_nan=True):
        raise ParityError(
            f"{name}: NaN or infinity at other places, {int((~np.isfinite(j)).sum())} against {int((~finite).sum())}"
        )
    with np.errstate(over="ignore"):
        relative, peak = zip(*(_apart(*_scaled(part(t, those), part(j, those))) for those in entry_groups(t)), strict=True)
    return Error(max(relative), max(peak), *rounding.of(t))


def error(ours: Any, theirs: Any, noise: float = 0.0, rounding: Noise = EXACT) -> Error:
    """Infinite where shapes, NaN or infinities do not agree; nothing where both sides are no more than noise."""
    if (noise and is_null(ours, theirs, noise)) or (rounding != EXACT and rounding.explains(ours, theirs)):
        return EQUAL
    try:
        return difference("", ours, theirs, rounding)
    except ParityError:
        return DIFFERENT


def distance(ours: Any, reference: Any) -> float:
    """relL2; infinite where shapes, or NaN and infinities, do not agree."""
    return error(ours, reference).relative


def _scaled(reference: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """Beside huge numbers, all divided by one power of two, so that none is too large to be squared."""
    top = np.abs(reference).max(initial=0.0)
    return tuple(array / 2.0 ** (math.frexp(top)[1] - 1) if top >= HUGE else array for array in (reference, *others))


def _apart(t: np.ndarray, j: np.ndarray) -> tuple[float, float]:
    """relL2 and max/rms."""
    gap, size = j - t, np.linalg.norm(t)
    if size == 0:
        return (np.inf, np.inf) if gap.any() else (0.0, 0.0)
    return float(np.linalg.norm(gap) / size), float(np.abs(gap).max() / (size / np.sqrt(t.size)))


def check_float64(name: str, ours: Any, reference: Any, kind: Kind = "activation", noise: Noise = EXACT) -> Error:
    """Tier A: raise ParityError unless both sides are float64 and within the tolerance of their kind, or of `noise`."""
    for side, array in (("jax", host(ours)), ("torch", host(reference))):
        if array.dtype != np.float64:
            raise ParityError(f"{name}: {side} gave {array.dtype}, tier A compares float64")
    found = difference(name, ours, reference, noise)
    if over(found, kind):
        relative, peak = found.allowed(kind)
        both = f"{peak:.0e}" if relative == np.inf else f"{relative:.0e} and {peak:.0e}"
        raise ParityError(f"{name}: {found}; tier A allows {both}")
    return found


def check_float32(name: str, ours: Any, theirs: Any, truth: Any, noise: Noise = EXACT, factor: float = 2.0) -> float:
    """Tier B: |J - R| <= 2 |T - R| + 4 u |R| in L2, twice that in the max norm, with R torch's float64 result. One error is one
    draw: where `noise`, by which rounding perturbs torch in float64, is more in float32, that takes the place of |T - R|.

    Returns the larger ratio of an error to its tolerance; raises ParityError above 1.
    """
    in_float32 = Noise(noise.size * FLOAT32_BITS, noise.peak * FLOAT32_BITS) if np.isfinite(noise.size) else EXACT
    return _check_rounding("B", name, (ours, theirs, truth), factor, 4 * UNIT_ROUNDOFF, in_float32)


def check_bfloat16(name: str, ours: Any, theirs: Any, truth: Any) -> float:
    """Tier C: the same with 2 |T - R| + 3e-5 |R|."""
    return _check_rounding("C", name, (ours, theirs, truth), 2.0, 3e-5)


def _check_rounding(
    tier: str, name: str, arrays: tuple[Any, Any, Any], factor: float, least: float, noise: Noise = EXACT
) -> float:
    ours, theirs, truth = (as_float64(host(array)) for array in arrays)
    difference(name, ours, theirs)
    worst = 0.0
    for those in entry_groups(truth):
        r, j, t = _scaled(*(part(side, those) for side in (truth, ours, theirs)))
        known = noise if np.abs(part(truth, those)).max(initial=0.0) < HUGE else EXACT  # it is not scaled
        for norm, times, usual in ((np.linalg.norm, 1, known.size), (lambda a: np.abs(a).max(initial=0.0), 2, known.peak)):
            off, most = norm(j - r), times * (factor * max(norm(t - r), usual) + least * norm(r))
            if not off <= most:
                ratio = f"R {off / norm(t - r):.1f}" if norm(t - r) else "R infinite"
                raise ParityError(
                    f"{name}: error {off:.1e} against torch's {norm(t - r):.1e}, {ratio}; tier {tier} allows {most:.1e}"
                )
            worst = max(worst, float(off / most) if most else 0.0)
    return worst


def rounding_ratio(ours: Any, theirs: Any, truth: Any) -> float:
    """R = |J - R64| / |T - R64| in L2: how much more JAX's output is off than torch's. 1 where neither is off."""
    r, j, t = (as_float64(host(array)) for array in (truth, ours, theirs))
    those = entry_groups(r)[-1]
    r, j, t = _scaled(*(part(side, those) for side in (r, j, t)))
    off, measure = float(np.linalg.norm(j - r)), float(np.linalg.norm(t - r))
    return off / measure if measure else (math.inf if off else 1.0)


def check_gradients(
    ours: Mapping[str, Any], reference: Mapping[str, Any], rounding: Mapping[str, Noise] | None = None
) -> list[str]:
    """Tier A for every gradient by name; returns the NULL ones, which are zero but for rounding on both sides.

    What is null in torch must be null in JAX, and the other way round.
    """
    if set(ours) != set(reference):
        raise ParityError(f"gradients of different tensors: {sorted(set(ours) ^ set(reference))}")
    pairs = {name: (host(ours[name]), host(reference[name])) for name in reference}
    noise = NULL_GRADIENT * rms(theirs for _, theirs in pairs.values())
    null = []
    for name, (mine, theirs) in pairs.items():
        perturbed = (rounding or {}).get(name, EXACT)
        if is_null(mine, theirs, noise) or perturbed.explains(mine, theirs):
            null.append(name)
        else:
            check_float64(name, mine, theirs, "gradient", perturbed)
    return null


def rms(arrays: Iterable[np.ndarray]) -> float:
    """Of all entries together, but for huge ones."""
    total, count = 0.0, 0
    for array in arrays:
        sizes = np.abs(array).ravel()
        usual = part(sizes, ~(sizes >= HUGE))
        total, count = total + float(np.square(usual).sum()), count + usual.size
    return float(np.sqrt(total / count)) if count else 0.0


def is_null(ours: np.ndarray, theirs: np.ndarray, noise: float) -> bool:
    """Whether both are gradients of no more than rounding noise around zero."""
    return bool(np.abs(theirs).max(initial=0.0) <= noise and np.abs(ours).max(initial=0.0) <= noise)


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """The same type, shape and bytes: -0.0 is not 0.0, and a NaN equals itself."""
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()
