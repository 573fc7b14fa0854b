"""A few numbers that stand for an array: what is compared where whole arrays would be too many to keep.

None of them depends on the order of the array's axes, since the two sides may have axes in another order. The projections are
sums of all entries with random signs, a sign being the product of one sign for each axis, which its length gives. The mean of
their squares is on average the square of the array's L2 norm (Achlioptas 2003, with signs of one factor an axis), so that the
projections of two arrays, which are known one by one, bound how far they are apart.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from jaxformer.convert.layouts import fingerprint
from jaxformer.parity.numerics.metrics import Error, as_float64

DIGITS = 16
"""Hexadecimal digits of a sum of hashes."""
PROJECTIONS = 16
"""Number of projections: they give a distance within a factor of 2, in 19 of 20 draws."""


@dataclass(frozen=True)
class Statistics:
    """Statistics of an array of numbers."""

    shape: tuple[int, ...]
    not_finite: int
    """Number of entries that are NaN or infinite; all else is of the other entries."""
    least: float
    largest: float
    mean: float
    size: float
    """L2 norm."""
    checksum: str
    """Hash of the entries' bits and of the dtype, in any order of the entries."""
    projections: tuple[float, ...]

    def fits(self, other: "Statistics") -> bool:
        """True if the shapes are equal in some order of axes."""
        return sorted(self.shape) == sorted(other.shape)

    @property
    def digest(self) -> tuple[int, ...]:
        """Sums of hashes that the checksum holds: those of several arrays together are the sums of theirs, modulo 2^64."""
        digits = self.checksum.partition(":")[2]
        return tuple(int(digits[at : at + DIGITS], 16) for at in range(0, len(digits), DIGITS))

    def apart(self, other: "Statistics") -> Error:
        """Estimate the error of another array of such a shape against this one; infinite if other entries are finite.

        Arrays with the same checksum hold the same entries, and only their projections tell if these are in the same order.
        """
        if self.checksum == other.checksum and self.projections == other.projections:
            return Error(0.0, 0.0)
        rms = self.size / math.sqrt(max(1, math.prod(self.shape)))
        if self.not_finite != other.not_finite or not rms:
            return Error(math.inf, math.inf)
        off = np.subtract(self.projections, other.projections)
        peak = max(abs(self.least - other.least), abs(self.largest - other.largest))
        return Error(float(np.sqrt(np.square(off).mean())) / self.size, peak / rms)


def statistics_of(array: np.ndarray) -> Statistics:
    """Return the statistics of an array of numbers; of complex ones, with the real and the imaginary parts along a new axis."""
    array = np.stack([np.real(array), np.imag(array)]) if np.iscomplexobj(array) else array
    wide, hashed = as_float64(array), fingerprint(array)
    finite = np.isfinite(wide)
    held = wide if finite.all() else wide[finite]
    wide = wide if finite.all() else np.where(finite, wide, 0.0)
    projected = wide[..., None]
    for axis in reversed(range(wide.ndim)):
        signs = signs_of(wide.shape[axis])
        projected = np.einsum("...ik,ik->...k", projected, signs) if axis < wide.ndim - 1 else wide @ signs
    ends = (held.min(), held.max(), held.mean()) if held.size else (0.0, 0.0, 0.0)
    return Statistics(
        shape=array.shape,
        not_finite=int(finite.size - finite.sum()),
        least=float(ends[0]),
        largest=float(ends[1]),
        mean=float(ends[2]),
        size=float(np.linalg.norm(held)),
        checksum=f"{hashed.dtype}:" + "".join(f"{part:0{DIGITS}x}" for part in hashed.digest),
        projections=tuple(map(float, np.broadcast_to(projected, (*projected.shape[:-1], PROJECTIONS)).ravel())),
    )


@cache
def signs_of(length: int) -> np.ndarray:
    """Return the signs along an axis of this length, [length, PROJECTIONS]."""
    return np.random.default_rng([length, PROJECTIONS]).choice([-1.0, 1.0], (length, PROJECTIONS))
