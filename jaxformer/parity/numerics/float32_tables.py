"""Tables that torch holds in float32, such as frequencies of rotations and sinusoids: the same formula in float64 differs from
them by float32's rounding, which is not a bug. So torch's table is used on both sides where JAX computes the same one.

Without recognising sinusoids, torch's tables could be perturbed by a float32 ulp where its rounding is measured
(`record.rounding_error`). Then 1e-7 would be allowed instead of 1e-13 for all that reads a float32 buffer, even where JAX holds
the same one, and bugs below that would not be found. Training has fixed tolerances, and would fail.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

ROUNDED = 1e-6
"""The largest relative error of an entry: 7e-7 was measured, for frequencies exp(i log(b)/d) with b up to 1e7."""
ROW = 2.0**-20
"""The same for the row number of a sinusoid, whose angles are products of it: two thirds of this were measured."""
SINUSOID = 1e-2
"""How far a column may be from a sinusoid, as a part of its largest entry."""


def is_rounded(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether two arrays of one shape are one formula with rounding: every entry is compared by itself."""
    rows, own = (array.squeeze().astype(np.float64) for array in (theirs, ours))
    finite = np.isfinite(rows)
    if not np.array_equal(rows[~finite], own[~finite], equal_nan=True):
        return False
    rows, own = (np.where(finite, array, 0) for array in (rows, own))
    allowed = ROUNDED * np.abs(rows)
    if rows.ndim > 1 and finite.all() and len(rows) > 2:
        number = np.arange(len(rows)).reshape(-1, *[1] * (rows.ndim - 1))
        allowed += ROW * number * slope(rows) * are_sinusoids(rows)
    return bool((np.abs(own - rows) <= allowed).all())


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


def leading(table: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """The first entries along each axis, in this shape; axes of one entry may be others. None where they do not fit, or are all
    the same: that is not a table."""
    table, sizes = table.squeeze(), [n for n in shape if n != 1]
    if not sizes or 0 in sizes or table.ndim != len(sizes) or any(n > most for n, most in zip(sizes, table.shape, strict=True)):
        return None
    first = table[tuple(map(slice, sizes))].reshape(shape).astype(np.float64)
    return None if (first == first.flat[0]).all() else first


def forms(table: np.ndarray, ours: np.ndarray) -> tuple[np.ndarray, ...]:
    """What the table may stand for beside an array of jax's. One number is a table where it is jax's, rounded to float32 (the
    scale of Gemma's embeddings)."""
    if table.size == ours.size == 1:
        same = table.item() == np.float32(ours.item())
        return (table.reshape(ours.shape).astype(np.float64),) if same else ()
    theirs = leading(table, ours.shape)
    return () if theirs is None else (theirs, 1 / theirs) if theirs.all() else (theirs,)


@dataclass
class Tables:
    """Replaces tables that JAX code computes by torch's; a module that computes another one still differs."""

    held: Mapping[str, np.ndarray]
    """torch's, by name."""
    off: dict[str, float] = field(default_factory=dict)
    """The largest error of jax's."""

    def instead(self, array: Any) -> Any:
        """For an array that code has computed: torch's table, its first rows, or 1 over these (timescales are 1 / frequencies),
        if the two differ by rounding alone."""
        if not jnp.issubdtype(array.dtype, jnp.floating):
            return array
        ours = np.asarray(array)
        for name, table in self.held.items():
            for form in forms(table, ours):
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
    """In words, of two tables of one formula."""
    return f"differs by {most:.1e} of its size at most, float32's rounding"
