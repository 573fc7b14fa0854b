"""Tables that torch holds in float32, as frequencies of rotations and sinusoids are: the same formula in float64 differs from
them by float32's rounding, which is no bug.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

ROUNDED = 1e-6
"""How far an entry may be off, as a part of it: 7e-7 was measured, of frequencies as exp(i log(b)/d), b up to 1e7."""
ROW = 2.0**-20
"""And in waves, whose angles are products of the row's number, as much as if that number was off by this part of it: two thirds
of it were measured."""
ALIKE = 1e-2
"""How far a wave's column may be from one, as a part of its largest entry."""


def is_rounded(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two arrays of one shape are one formula, rounded: every entry counts by itself."""
    rows, own = (array.squeeze().astype(np.float64) for array in (theirs, ours))
    finite = np.isfinite(rows)
    if not np.array_equal(rows[~finite], own[~finite], equal_nan=True):
        return False
    rows, own = (np.where(finite, array, 0) for array in (rows, own))
    allowed = ROUNDED * np.abs(rows)
    if rows.ndim > 1 and finite.all() and len(rows) > 2:
        number = np.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
        allowed += ROW * number * slope(rows) * waves(rows)
    return bool((np.abs(own - rows) <= allowed).all())


def slope(rows: np.ndarray) -> np.ndarray:
    """The largest step of each column to a row nearby."""
    steps = np.pad(np.abs(np.diff(rows, axis=0)), [(2, 2), *[(0, 0)] * (rows.ndim - 1)])
    return np.maximum.reduce([steps[i : i + len(rows)] for i in range(4)])


def waves(rows: np.ndarray) -> np.ndarray:
    """Which columns are sines or cosines of frequency f: x[t - 1] + x[t + 1] = 2 cos(f) x[t]; rows of zeros, as that of the
    padding is, set aside."""
    three = np.stack([rows[:-2], rows[1:-1], rows[2:]], 1)
    before, middle, after = three[three.reshape(*three.shape[:2], -1).any(-1).all(-1)].swapaxes(0, 1)
    around = before + after
    factor = (around * middle).sum(0) / np.maximum((middle**2).sum(0), np.finfo(np.float64).tiny)
    return np.abs(around - np.clip(factor, -2, 2) * middle).max(0, initial=0.0) <= ALIKE * np.abs(rows).max(0)


def leading(table: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The first entries along each axis, in this shape; axes of one entry may be others. None where they do not fit, or are all
    the same: that is no table."""
    table, sizes = table.squeeze(), [n for n in shape if n != 1]
    if not sizes or 0 in sizes or table.ndim != len(sizes) or any(n > most for n, most in zip(sizes, table.shape, strict=True)):
        return None
    first = table[tuple(map(slice, sizes))].reshape(shape).astype(np.float64)
    return None if (first == first.flat[0]).all() else first


@dataclass
class Tables:
    """Puts torch's in place of those that JAX code computes; a module that computes another one still differs."""

    held: Mapping[str, np.ndarray]
    """torch's, by name."""
    off: dict[str, float] = field(default_factory=dict)
    """By how much ours were off, at most."""

    def instead(self, array: Any) -> Any:
        """Of an array that code has computed: torch's table, or the first rows of it, or 1 over these (timescales are that of
        frequencies), where it is that but for rounding."""
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return array
        ours = np.asarray(array)
        for name, table in self.held.items():
            theirs = leading(table, array.shape)
            for form in () if theirs is None else (theirs, 1 / theirs) if theirs.all() else (theirs,):
                if is_rounded(ours, form) and not np.array_equal(ours, form, equal_nan=True):
                    self.off[name] = max(self.off.get(name, 0.0), most_off(ours, form))
                    return jnp.asarray(form, array.dtype)
        return array

    def says(self) -> tuple[str, ...]:
        """One line for each that was found."""
        return tuple(f"{name}, which JAX computes, {say_rounded(most)}; torch's is used" for name, most in self.off.items())


NO_TABLES = Tables({})


def most_off(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference of finite entries, as a part of the largest of them."""
    finite = np.isfinite(theirs)
    return float(np.abs(ours[finite].astype(np.float64) - theirs[finite]).max() / np.abs(theirs[finite]).max())


def say_rounded(most: float) -> str:
    """Of two tables that are one formula."""
    return f"differs by {most:.1e} of its size at most, float32's rounding"
