"""How far two arrays are apart, and what counts as equal.

Tier A decides in float64, where correct code differs by rounding noise alone. Tier B judges float32 against torch's own
rounding error. Element-wise tolerances and ULP counts say nothing near zero and are not used.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jaxformer.errors import ParityError

Kind = Literal["activation", "gradient", "loss", "parameter"]

UNIT_ROUNDOFF = 2.0**-24
"""u of float32."""
NULL_GRADIENT = 1e-12
"""A float64 gradient below this part of the global rms is rounding noise around zero."""
HUGE = 1e8
"""Numbers so large are masks, as a rule: beside them no error of the others would count, which are judged by themselves too."""


@dataclass(frozen=True)
class Difference:
    """Distances of J from T: |J - T| / |T| in L2, and max |J - T| / rms(T); of all entries or of those that are not huge, the
    larger one."""

    name: str
    relative: float
    peak: float

    def __str__(self) -> str:
        return f"{self.name}: relL2 {self.relative:.1e}, max/rms {self.peak:.1e}"


TOLERANCES: dict[Kind, tuple[float, float]] = {
    "activation": (1e-13, 1e-12),
    "gradient": (np.inf, 1e-12),
    "loss": (1e-13, 1e-13),
    "parameter": (np.inf, 1e-11),
}
"""Tier A: the largest relative and peak difference."""
FACTOR = 4.0
"""A difference may be this many times torch's own rounding error in L2, and twice as many times in the max norm."""


@dataclass(frozen=True)
class Noise:
    """How far rounding alone moves an array of torch's: all of it, or beside huge entries the others."""

    size: float
    """L2."""
    peak: float
    """Of the entry that moves most."""

    @classmethod
    def between(cls, moved: np.ndarray, reference: np.ndarray, counted: np.ndarray | bool = True) -> "Noise":
        """Of those `counted`; without limit where NaN or infinity came instead.

        Huge ones that move more, for their size, than the others do are no masks: they stand for as much of the others.
        """
        sides = as_float64(reference), as_float64(moved)
        usual, *others = (
            [part(side, np.asarray(those & counted)) for side in sides]
            for those in (usual_entries(reference), *judged(reference)[:-1])
        )
        with np.errstate(over="ignore", invalid="ignore"):
            gap, norm = usual[1] - usual[0], float(np.linalg.norm(usual[0]))
            size, peak = float(np.linalg.norm(gap)), float(np.abs(gap).max(initial=0.0))
            for theirs, ours in others if norm else ():
                relative, highest = _apart(*_scaled(theirs, ours))
                size, peak = max(size, relative * norm), max(peak, highest * norm / float(np.sqrt(gap.size)))
        return cls(size, peak) if np.isfinite(size + peak) else cls(np.inf, np.inf)

    def of(self, reference: np.ndarray) -> tuple[float, float]:
        """Relative to T, those entries of the array or of a part of it, as a `Difference` is; (0, 0) where that is no number:
        T is 0, or too large to be squared."""
        usual = part(reference, usual_entries(reference))
        with np.errstate(over="ignore"):
            size = float(np.linalg.norm(usual))
        return (self.size / size, self.peak / size * float(np.sqrt(usual.size))) if 0 < size < np.inf else (0.0, 0.0)

    def explains(self, ours: np.ndarray, reference: np.ndarray) -> bool:
        """Whether it is why ours is not 0 where all of torch's is."""
        return not reference.any() and bool(np.abs(ours).max(initial=0.0) <= 2 * FACTOR * self.peak)


EXACT = Noise(0.0, 0.0)


def allowed(kind: Kind, relative: float = 0.0, peak: float = 0.0) -> tuple[float, float]:
    """The largest relative and peak difference in tier A: its lines, or what rounding of that size relaxed_tolerances."""
    return max(TOLERANCES[kind][0], FACTOR * relative), max(TOLERANCES[kind][1], 2 * FACTOR * peak)


def host(array: Any) -> np.ndarray:
    """A float array of either framework on the host."""
    return array.detach().cpu().numpy() if hasattr(array, "detach") else np.asarray(array)


def as_float64(array: np.ndarray) -> np.ndarray:
    """As float64, or complex128: what is true is 1."""
    return array.astype(np.result_type(array.dtype, np.float64), copy=False)


def judged(reference: np.ndarray) -> list[np.ndarray]:
    """Which entries of T are judged together: all finite ones; and where some of these are huge, the others once more."""
    finite, usual = np.asarray(np.isfinite(reference)), np.asarray(np.abs(reference) < HUGE)
    return [finite, usual] if 0 < usual.sum() < finite.sum() else [finite]


def usual_entries(reference: np.ndarray) -> np.ndarray:
    """By which entries an array's size is measured: those that are not huge, if they are not all zero."""
    those = judged(reference)
    return those[-1] if reference[those[-1]].any() else those[0]


def part(array: np.ndarray, those: np.ndarray) -> np.ndarray:
    """Those entries; no copy of all."""
    return array if those.all() else array[those]


def difference(name: str, ours: Any, reference: Any) -> Difference:
    """Distances over the finite entries; ParityError where shapes or NaN and infinity patterns differ."""
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
        relative, peak = zip(*(_apart(*_scaled(part(t, those), part(j, those))) for those in judged(t)), strict=True)
    return Difference(name, max(relative), max(peak))


def distance(ours: Any, reference: Any) -> float:
    """relL2; infinite where shapes, or NaN and infinities, do not agree."""
    try:
        return difference("", ours, reference).relative
    except ParityError:
        return math.inf


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


def check_float64(name: str, ours: Any, reference: Any, kind: Kind = "activation", noise: Noise = EXACT) -> Difference:
    """Tier A: raise ParityError unless both sides are float64 and within the line of their kind, or what `noise` explains."""
    for side, array in (("jax", host(ours)), ("torch", host(reference))):
        if array.dtype != np.float64:
            raise ParityError(f"{name}: {side} gave {array.dtype}, tier A compares float64")
    found = difference(name, ours, reference)
    relative, peak = allowed(kind, *noise.of(host(reference)))
    if not (found.relative <= relative and found.peak <= peak):
        both = f"{peak:.0e}" if relative == np.inf else f"{relative:.0e} and {peak:.0e}"
        raise ParityError(f"{found}; tier A allows {both}")
    return found


def check_float32(name: str, ours: Any, theirs: Any, truth: Any) -> float:
    """Tier B: |J - R| <= 4 |T - R| + 4 u |R| in L2, 8 for 4 in the max norm, with R torch's float64 result.

    Returns the larger ratio to its line; raises ParityError above 1.
    """
    return _check_rounding(name, ours, theirs, truth, factor=FACTOR, least=4 * UNIT_ROUNDOFF, tier="B")


def check_bfloat16(name: str, ours: Any, theirs: Any, truth: Any) -> float:
    """Tier C: the same with 2 |T - R| + 3e-5 |R|."""
    return _check_rounding(name, ours, theirs, truth, factor=2.0, least=3e-5, tier="C")


def _check_rounding(name: str, ours: Any, theirs: Any, truth: Any, *, factor: float, least: float, tier: str) -> float:
    sides = [as_float64(host(array)) for array in (truth, ours, theirs)]
    difference(name, ours, theirs)
    worst = 0.0
    for those in judged(sides[0]):
        r, j, t = _scaled(*(part(side, those) for side in sides))
        for norm, times in ((np.linalg.norm, 1), (lambda a: np.abs(a).max(initial=0.0), 2)):
            gap, line = norm(j - r), times * (factor * norm(t - r) + least * norm(r))
            if not gap <= line:
                raise ParityError(f"{name}: error {gap:.1e} against torch's {norm(t - r):.1e}; tier {tier} allows {line:.1e}")
            worst = max(worst, float(gap / line) if line else 0.0)
    return worst


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
        moved = (rounding or {}).get(name, EXACT)
        if is_null(mine, theirs, noise) or moved.explains(mine, theirs):
            null.append(name)
        else:
            check_float64(name, mine, theirs, "gradient", moved)
    return null


def rms(arrays: Iterable[np.ndarray]) -> float:
    """Of all entries together, but for huge ones."""
    total, count = 0.0, 0
    for array in arrays:
        sizes = np.abs(array)
        usual = sizes[~(sizes >= HUGE)]
        total, count = total + float(np.square(usual).sum()), count + usual.size
    return float(np.sqrt(total / count)) if count else 0.0


def is_null(ours: np.ndarray, theirs: np.ndarray, noise: float) -> bool:
    """Whether both are gradients of no more than rounding noise around zero."""
    return bool(np.abs(theirs).max(initial=0.0) <= noise and np.abs(ours).max(initial=0.0) <= noise)


def same_bits(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """The same type, shape and bytes: -0.0 is not 0.0, and a NaN equals itself."""
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


PARAMETER = TOLERANCES["parameter"][1]


LOSS = 1e-12
"""Tier A: the largest relative difference of a loss on the way."""


EXPLAINED = 1e-12
"""The largest relL2 at which a formula gives an array."""
