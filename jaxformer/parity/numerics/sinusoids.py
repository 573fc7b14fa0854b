"""Sines and cosines of positions, as tables: rows are positions, and every column has a frequency of its own."""

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
