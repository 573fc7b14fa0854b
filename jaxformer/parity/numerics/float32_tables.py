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

ROW = 2.0**-20
"""The largest error of an angle that float32 rounds, as a part of it: two thirds of this were measured."""
SINUSOID = 1e-2
"""How far a column may be from a sinusoid, as a part of its largest entry."""
LAST_ROWS = 8
"""So many rows tell which column is which: the last ones, where angles are far apart."""


def rounded_angles(rows: np.ndarray) -> np.ndarray | float:
    """How far each entry may be off where float32 rounds its angle, which grows with the row's number; 0 in other columns."""
    if rows.ndim < 2 or len(rows) < 3:
        return 0.0
    number = np.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
    return ROW * number * slope(rows) * are_sinusoids(rows)


def slope(rows: np.ndarray) -> np.ndarray:
    """The largest step of each column to a row nearby."""
    steps = np.pad(np.abs(np.diff(rows, axis=0)), [(2, 2), *[(0, 0)] * (rows.ndim - 1)])
    return np.maximum.reduce([steps[i : i + len(rows)] for i in range(4)])


def are_sinusoids(rows: np.ndarray) -> np.ndarray:
    """Which columns are sines or cosines of frequency f: x[t - 1] + x[t + 1] = 2 cos(f) x[t]; rows of zeros, such as that of
    the padding, are left out."""
    three = np.stack([rows[:-2], rows[1:-1], rows[2:]], 1)
    before, middle, after = three[three.reshape(*three.shape[:2], -1).any(-1).all(-1)].swapaxes(0, 1)
    around = before + after
    factor = (around * middle).sum(0) / np.maximum((middle**2).sum(0), np.finfo(np.float64).tiny)
    return np.abs(around - np.clip(factor, -2, 2) * middle).max(0, initial=0.0) <= SINUSOID * np.abs(rows).max(0)


def sinusoids_of(frequencies: np.ndarray, ours: np.ndarray) -> np.ndarray | None:
    """The table nearest to jax's whose columns are sines and cosines of torch's frequencies; None where jax's is no table that
    begins at position 0, at which sines are 0 and cosines 1."""
    rows = ours.squeeze().astype(np.float64)
    if frequencies.ndim != 1 or not (frequencies > 0).all() or rows.ndim < 2 or len(rows) < 3:
        return None
    switches = (rows == 0) | (rows == 1)  # a mask, or ones: the cosines of a low frequency
    if not switches[0].all() or switches.all() or np.abs(rows).max() > 1:
        return None
    columns = rows.reshape(len(rows), -1)
    angles = np.outer(np.arange(len(rows)), frequencies.astype(np.float64))
    waves = np.concatenate([np.sin(angles), -np.sin(angles), np.cos(angles)], 1)
    apart = sum(np.abs(columns[t][:, None] - waves[t]) for t in range(max(1, len(rows) - LAST_ROWS), len(rows)))
    return waves[:, np.argmin(apart, 1)].reshape(ours.shape)


COSINES = 3
"""With the constant: Blackman's window, which has most of them."""
FEWEST = 4 * COSINES
"""Entries that show a window: each number of it has four."""
WINDOW = 1e-6
"""How far an entry may be from a window, as a part of the largest one."""
ROUNDED_WINDOW = 2.0**-21
"""The largest error where float32 computes one, the same part: angles of up to 2 pi are rounded, and the difference of two
numbers near 1/2 (2.7e-7 was measured, of torch's with 12 to 4,096 entries)."""


def rounded_window(table: np.ndarray) -> float:
    """How far each entry of a window may be off in float32: its ends are differences of large numbers. 0 if it is none."""
    if table.ndim != 1 or len(table) < FEWEST or not (most := np.abs(table).max(initial=0.0)):
        return 0.0
    return ROUNDED_WINDOW * most * any(is_window(table / most, period) for period in (len(table), len(table) - 1))


def is_window(table: np.ndarray, period: int) -> bool:
    """Whether it is these cosines of the period alone, and larger in the middle than at its ends."""
    cosines = np.cos(2 * np.pi / period * np.outer(np.arange(len(table)), np.arange(COSINES)))
    parts = np.linalg.lstsq(cosines, table, rcond=None)[0]
    return bool(parts[1] < 0) and bool(np.abs(cosines @ parts - table).max() <= WINDOW)


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
