"""Windows of signals, as tables: a constant and few cosines (Hann, Hamming, Blackman)."""

import numpy as np

COSINES = 3
"""With the constant: Blackman's window, which has most of them."""
FEWEST = 4 * COSINES
"""Entries that show a window: each number of it has four."""
WINDOW = 1e-6
"""How far an entry may be from a window, as a part of the largest one."""
ROUNDED = 2.0**-21
"""The largest error where float32 computes one, the same part: angles of up to 2 pi are rounded, and the difference of two
numbers near 1/2 (2.7e-7 was measured, of torch's with 12 to 4,096 entries)."""


def rounded_window(table: np.ndarray) -> float:
    """How far each entry of a window may be off in float32: its ends are differences of large numbers. 0 if it is none."""
    if table.ndim != 1 or len(table) < FEWEST or not (most := np.abs(table).max(initial=0.0)):
        return 0.0
    return ROUNDED * most * any(is_window(table / most, period) for period in (len(table), len(table) - 1))


def is_window(table: np.ndarray, period: int) -> bool:
    """Whether it is these cosines of the period alone, and larger in the middle than at its ends."""
    cosines = np.cos(2 * np.pi / period * np.outer(np.arange(len(table)), np.arange(COSINES)))
    parts = np.linalg.lstsq(cosines, table, rcond=None)[0]
    return bool(parts[1] < 0) and bool(np.abs(cosines @ parts - table).max() <= WINDOW)
