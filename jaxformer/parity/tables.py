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
ROW = 2.0**-23
"""And more in each further row of a sinusoid, whose angles are products of the row's number: half of that was measured."""


def is_rounded(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two arrays of one shape are one formula, rounded: every entry counts by itself."""
    rows, own = (array.squeeze().astype(np.float64) for array in (theirs, ours))
    finite = np.isfinite(rows)
    if not np.array_equal(rows[~finite], own[~finite], equal_nan=True):
        return False
    rows, own = (np.where(finite, array, 0) for array in (rows, own))
    allowed = ROUNDED * np.abs(rows)
    if rows.ndim > 1 and finite.all() and np.isin(rows[0], (0, 1)).all() and np.abs(rows).max() <= 1:
        allowed += ROW * np.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))  # sines and cosines, from position 0
    return bool((np.abs(own - rows) <= allowed).all())


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
