"""Tables that torch holds in float32, such as frequencies of rotations and sinusoids: the same formula in float64 differs from
them by float32's rounding, which is not a bug. So torch's table is used on both sides where JAX computes the same one.

Without recognising sinusoids, torch's tables could be perturbed by a float32 ulp where its rounding is measured
(`record.rounding_error`). Then 1e-7 would be allowed instead of 1e-13 for all that reads a float32 buffer, even where JAX holds
the same one, and bugs below that would not be found. Training has fixed tolerances, and would fail.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.numerics.sinusoids import rounded_angles, sinusoids_of
from jaxformer.parity.numerics.windows import rounded_window

ROUNDED = 1e-6
"""The largest relative error of an entry: 7e-7 was measured, for frequencies exp(i log(b)/d) with b up to 1e7."""
KINDS = tuple(np.dtype(kind) for kind in (np.float32, np.float64, np.complex64, np.complex128))
"""The types in which a table may be computed."""


def is_rounded(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two arrays of one shape are one formula with rounding: every entry is compared by itself."""
    rows, own = (array.squeeze().astype(np.float64) for array in (theirs, ours))
    finite = np.isfinite(rows)
    if not np.array_equal(rows[~finite], own[~finite], equal_nan=True):
        return False
    rows, own = (np.where(finite, array, 0) for array in (rows, own))
    allowed = ROUNDED * np.abs(rows) + (rounded_angles(rows) + rounded_window(rows) if finite.all() else 0.0)
    return bool((np.abs(own - rows) <= allowed).all())


def leading(table: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The first entries along each axis, in this shape; axes of one entry may be others. None where they do not fit, or are all
    the same: that is not a table."""
    table, sizes = table.squeeze(), [n for n in shape if n != 1]
    if not sizes or 0 in sizes or table.ndim != len(sizes) or any(n > most for n, most in zip(sizes, table.shape, strict=True)):
        return None
    first = table[tuple(map(slice, sizes))].reshape(shape).astype(np.float64)
    return None if (first == first.flat[0]).all() else first


def forms(table: np.ndarray, ours: np.ndarray) -> Iterator[np.ndarray]:
    """What the table may stand for beside an array of jax's. One number is a table where it is jax's, rounded to float32 (the
    scale of Gemma's embeddings)."""
    if table.size == ours.size == 1:
        if table.item() == np.float32(ours.item()):
            yield table.reshape(ours.shape).astype(np.float64)
        return
    if (theirs := leading(table, ours.shape)) is not None:
        yield from (theirs, 1 / theirs) if theirs.all() else (theirs,)
    if (waves := sinusoids_of(table, ours)) is not None:
        yield waves


@dataclass
class Tables:
    """Replaces tables that JAX code computes by torch's; a module that computes another one still differs."""

    held: Mapping[str, np.ndarray]
    """torch's, by name."""
    off: dict[str, float] = field(default_factory=dict)
    """The largest error of jax's."""

    def instead(self, array: Any) -> Any:
        """For an array that code has computed: torch's table, its first rows, 1 over these (timescales are 1 / frequencies), or
        sines and cosines of frequencies, if the two differ by rounding alone. A float32 array becomes float64 then."""
        if array.dtype not in KINDS:
            return array
        ours = np.asarray(array)
        parts = [np.real(ours), np.imag(ours)] if np.iscomplexobj(ours) else [ours]
        found = [self._torchs(part) for part in parts]
        if all(table is None for table in found):
            return array
        real, *imaginary = [part if table is None else table for part, table in zip(parts, found, strict=True)]
        return jnp.asarray(real + 1j * imaginary[0] if imaginary else real)

    def _torchs(self, ours: np.ndarray) -> np.ndarray | None:
        """In float64; None where jax's array is none of torch's, or is torch's to the last bit."""
        with np.errstate(over="ignore"):  # a number of a mask, which float32 may not hold
            for name, table in self.held.items():
                for form in forms(table, ours):
                    if is_rounded(ours, form) and not np.array_equal(ours, form, equal_nan=True):
                        self.off[name] = max(self.off.get(name, 0.0), most_off(ours, form))
                        return form
        return None

    def says(self) -> tuple[str, ...]:
        """One line for each that was found."""
        return tuple(f"{name}, which JAX computes, {say_rounded(most)}; torch's is used" for name, most in self.off.items())


NO_TABLES = Tables({})


def most_off(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference of finite entries, as a part of the largest of them."""
    finite = np.isfinite(theirs)
    return float(np.abs(ours[finite].astype(np.float64) - theirs[finite]).max() / np.abs(theirs[finite]).max())


def say_rounded(most: float) -> str:
    """In words, of two tables of one formula."""
    return f"differs by {most:.1e} of its size at most, float32's rounding"
