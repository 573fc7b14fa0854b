"""Tables that torch holds in float32, as frequencies of rotations and sinusoids are: the same formula in float64 differs from
them by float32's rounding, which is no bug.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

ROUNDED = 1e-5
"""How far an entry may be off for it, as a part of the largest one of its column."""
PER_ROW = 2.0**-22
"""And more in each further row, as in angles that are products of a position."""


def is_rounded(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two tables of one shape are one formula, rounded: the first axis holds rows. In an array of one axis every entry
    is a column, so that small frequencies count as much as large ones."""
    rows, own = (array.squeeze().astype(np.float64) for array in (theirs, ours))
    rows, own = (array.reshape(1, -1) if array.ndim < 2 else array for array in (rows, own))
    finite = np.isfinite(rows)
    if not np.array_equal(rows[~finite], own[~finite], equal_nan=True):
        return False
    rows, own = (np.where(finite, array, 0) for array in (rows, own))
    part = np.maximum(ROUNDED, PER_ROW * np.arange(len(rows))).reshape(-1, *[1] * (rows.ndim - 1))
    return bool((np.abs(own - rows) <= part * np.abs(rows).max(0, initial=0)).all())


def leading(table: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The first entries along each axis, in this shape; axes of one entry may be others."""
    table, sizes = table.squeeze(), [n for n in shape if n > 1]
    if not sizes or table.ndim != len(sizes) or any(n > most for n, most in zip(sizes, table.shape, strict=True)):
        return None
    return table[tuple(map(slice, sizes))].reshape(shape)


@dataclass
class Tables:
    """Puts torch's in place of those that JAX code computes; a module that computes another one still differs."""

    held: Mapping[str, np.ndarray]
    """torch's, by name."""
    off: dict[str, float] = field(default_factory=dict)
    """By how much ours were off, at most."""

    def instead(self, array: Any) -> Any:
        """Of an array that code has computed: torch's table, or the first rows of it, where it is that but for rounding."""
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return array
        for name, table in self.held.items():
            theirs = leading(table, array.shape)
            if (
                theirs is not None
                and not np.array_equal(array, theirs, equal_nan=True)
                and is_rounded(np.asarray(array), theirs)
            ):
                self.off[name] = max(self.off.get(name, 0.0), most_off(np.asarray(array), theirs))
                return jnp.asarray(theirs, array.dtype)
        return array

    def says(self) -> tuple[str, ...]:
        """One line for each that was found."""
        rounded = "at most, float32's rounding; torch's is used"
        return tuple(f"{name}, which JAX computes, differs by {most:.1e} {rounded}" for name, most in self.off.items())


NO_TABLES = Tables({})


def most_off(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference of finite entries."""
    finite = np.isfinite(theirs)
    return float(np.abs(ours[finite].astype(np.float64) - theirs[finite]).max(initial=0))
