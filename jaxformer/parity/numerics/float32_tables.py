"""float32 tables of torch, such as rotary frequencies and sinusoids, that JAX recomputes.

The same formula in float64 differs from torch's table by float32's rounding, which is not a bug. So if JAX computes the same
table, torch's is used on both sides.

Without recognising sinusoids, torch's tables could be perturbed by a float32 ulp when its rounding error is measured
(`trace.rounding_error`). Then 1e-7 would be allowed instead of 1e-13 for everything that reads a float32 buffer, even where JAX
holds the same buffer, and smaller bugs would not be found. Training has fixed tolerances, and would fail.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

ROW = 2.0**-20
"""Largest relative error of an angle rounded to float32; two thirds of this were measured."""
SINUSOID = 1e-2
"""Largest residual of a column against a sinusoid, relative to the column's largest entry."""
LAST_ROWS = 8
"""Number of rows used to match columns to frequencies: the last rows, where angles are farthest apart."""


def rounded_angles(rows: np.ndarray) -> np.ndarray | float:
    """Return the largest error of each entry from rounding its angle to float32, which grows with the row number; 0 in columns
    that are not sinusoids."""
    if rows.ndim < 2 or len(rows) < 3:
        return 0.0
    number = np.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
    return ROW * number * slope(rows) * are_sinusoids(rows)


def slope(rows: np.ndarray) -> np.ndarray:
    """Return the largest step of each column to a nearby row."""
    steps = np.pad(np.abs(np.diff(rows, axis=0)), [(2, 2), *[(0, 0)] * (rows.ndim - 1)])
    return np.maximum.reduce([steps[i : i + len(rows)] for i in range(4)])


def are_sinusoids(rows: np.ndarray) -> np.ndarray:
    """Return a mask of the columns that are sines or cosines of one frequency f: x[t - 1] + x[t + 1] = 2 cos(f) x[t].

    Rows of zeros, such as the padding row, are left out.
    """
    three = np.stack([rows[:-2], rows[1:-1], rows[2:]], 1)
    before, middle, after = three[three.reshape(*three.shape[:2], -1).any(-1).all(-1)].swapaxes(0, 1)
    around = before + after
    factor = (around * middle).sum(0) / np.maximum((middle**2).sum(0), np.finfo(np.float64).tiny)
    return np.abs(around - np.clip(factor, -2, 2) * middle).max(0, initial=0.0) <= SINUSOID * np.abs(rows).max(0)


def sinusoids_of(frequencies: np.ndarray, ours: np.ndarray) -> np.ndarray | None:
    """Return the table of sines and cosines of torch's frequencies that is nearest to jax's array.

    None if jax's array is not a table that begins at position 0, where sines are 0 and cosines 1.
    """
    rows = ours.squeeze().astype(np.float64)
    if frequencies.ndim != 1 or not (frequencies > 0).all() or rows.ndim < 2 or len(rows) < 3:
        return None
    switches = (rows == 0) | (rows == 1)  # a mask, or a column of ones: the cosines of a low frequency
    if not switches[0].all() or switches.all() or np.abs(rows).max() > 1:
        return None
    columns = rows.reshape(len(rows), -1)
    angles = np.outer(np.arange(len(rows)), frequencies.astype(np.float64))
    waves = np.concatenate([np.sin(angles), -np.sin(angles), np.cos(angles)], 1)
    apart = sum(np.abs(columns[t][:, None] - waves[t]) for t in range(max(1, len(rows) - LAST_ROWS), len(rows)))
    return waves[:, np.argmin(apart, 1)].reshape(ours.shape)


COSINES = 3
"""Number of cosine terms, the constant included: as many as Blackman's window has, which has the most."""
FEWEST = 4 * COSINES
"""Minimum number of entries that identify a window: four for each coefficient."""
WINDOW = 1e-6
"""Largest residual of an entry against a window, relative to the largest entry."""
ROUNDED_WINDOW = 2.0**-21
"""Largest error of a window computed in float32, relative to its largest entry: angles of up to 2 pi are rounded, and so is the
difference of two numbers near 1/2 (2.7e-7 was measured for torch's windows of 12 to 4,096 entries)."""


def rounded_window(table: np.ndarray) -> float:
    """Return the largest float32 error of a window's entries, whose ends are differences of large numbers; 0 if the table is
    not a window."""
    if table.ndim != 1 or len(table) < FEWEST or not (most := np.abs(table).max(initial=0.0)):
        return 0.0
    return ROUNDED_WINDOW * most * any(is_window(table / most, period) for period in (len(table), len(table) - 1))


def is_window(table: np.ndarray, period: int) -> bool:
    """True if the table is a sum of `COSINES` cosines of this period, and larger in the middle than at its ends."""
    cosines = np.cos(2 * np.pi / period * np.outer(np.arange(len(table)), np.arange(COSINES)))
    parts = np.linalg.lstsq(cosines, table, rcond=None)[0]
    return bool(parts[1] < 0) and bool(np.abs(cosines @ parts - table).max() <= WINDOW)


ROUNDED = 1e-6
"""Largest relative error of an entry: 7e-7 was measured, for frequencies exp(i log(b)/d) with b up to 1e7."""
KINDS = tuple(np.dtype(kind) for kind in (np.float32, np.float64, np.complex64, np.complex128))
"""Dtypes in which a table may be computed."""


def is_rounded(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """True if two arrays of one shape differ by float32's rounding alone, compared entry by entry."""
    rows, own = (array.squeeze().astype(np.float64) for array in (theirs, ours))
    finite = np.isfinite(rows)
    if not np.array_equal(rows[~finite], own[~finite], equal_nan=True):
        return False
    rows, own = (np.where(finite, array, 0) for array in (rows, own))
    allowed = ROUNDED * np.abs(rows) + (rounded_angles(rows) + rounded_window(rows) if finite.all() else 0.0)
    return bool((np.abs(own - rows) <= allowed).all())


def leading(table: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the first entries of a table along each axis, in this shape; axes of size 1 may differ.

    None if the sizes do not fit, or if all entries are equal: that is not a table.
    """
    table, sizes = table.squeeze(), [n for n in shape if n != 1]
    if not sizes or 0 in sizes or table.ndim != len(sizes) or any(n > most for n, most in zip(sizes, table.shape, strict=True)):
        return None
    first = table[tuple(map(slice, sizes))].reshape(shape).astype(np.float64)
    return None if (first == first.flat[0]).all() else first


def forms(table: np.ndarray, ours: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the arrays of jax's shape that torch's table may stand for: its first rows, their reciprocals, and sinusoids.

    A single number is a table only if it is jax's number rounded to float32 (the scale of Gemma's embeddings).
    """
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
    """Replaces tables that JAX code computes by torch's; a module that computes a different table still differs."""

    held: Mapping[str, np.ndarray]
    """torch's tables by name."""
    off: dict[str, float] = field(default_factory=dict)
    """Largest relative error of jax's table, by the name of torch's."""

    def instead(self, array: Any) -> Any:
        """Return torch's table for an array that JAX code has computed, if the two differ by rounding alone; else the array.

        The array may be the table's first rows, their reciprocals (timescales are 1 / frequencies), or sines and cosines of its
        frequencies. A float32 array is then replaced by a float64 one.
        """
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
        """Return torch's table in float64; None if jax's array matches no table, or equals one bit for bit."""
        with np.errstate(over="ignore"):  # a mask's number may not fit into float32
            for name, table in self.held.items():
                for form in forms(table, ours):
                    if is_rounded(ours, form) and not np.array_equal(ours, form, equal_nan=True):
                        self.off[name] = max(self.off.get(name, 0.0), most_off(ours, form))
                        return form
        return None

    def says(self) -> tuple[str, ...]:
        """Return one line for each table that was replaced."""
        return tuple(f"{name}, which JAX computes, {say_rounded(most)}; torch's is used" for name, most in self.off.items())


NO_TABLES = Tables({})


def most_off(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference of finite entries, relative to the largest finite entry."""
    finite = np.isfinite(theirs)
    return float(np.abs(ours[finite].astype(np.float64) - theirs[finite]).max() / np.abs(theirs[finite]).max())


def say_rounded(most: float) -> str:
    """Describe the difference between two tables of one formula."""
    return f"differs by {most:.1e} of its size at most, float32's rounding"
