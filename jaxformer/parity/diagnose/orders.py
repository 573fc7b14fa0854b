"""Names of permutations: the usual ways in which pieces of an array are rearranged, in a porter's words."""

from collections.abc import Sequence

import numpy as np

SHOWN = 8
"""Number of pieces shown of an order without a name."""
PATTERNS = {
    "exchanged": "the other way round",
    "reversed": "from the last to the first",
    "rolled": "rolled by {by} (`roll`)",
    "evens": "the even ones before the odd ones: halves for neighbours",
    "turns": "a half and a half in turns: neighbours for halves",
    "strided": "by columns: reshaped to ({by}, ...) and transposed",
    "": "in the order {order}",
}
WAVES = {"sine": "`cat([cos, sin])` for `cat([sin, cos])`", "cosine": "`cat([sin, cos])` for `cat([cos, sin])`"}
"""Words for an exchanged sine and cosine, by the one that comes first in torch's code."""


def pattern(order: Sequence[int]) -> tuple[str, int]:
    """Return the name of an order, a key of `PATTERNS`, and the number that belongs to it."""
    n, several = len(order), np.arange(len(order))
    if n == 2:
        return "exchanged", 0
    if [*order] == [*several[::-1]]:
        return "reversed", 0
    if len(shifts := np.unique((several - order) % n)) == 1:
        by = int(shifts[0])
        return "rolled", by if 2 * by <= n else by - n
    for rows in (rows for rows in range(2, n) if n % rows == 0):
        if [*order] == [*several.reshape(rows, -1).T.flat]:
            return ("turns" if rows == 2 else "evens" if 2 * rows == n else "strided"), rows
    return "", 0


def arranged(order: Sequence[int]) -> str:
    """Describe an order: 'from the last to the first', 'in the order 2, 0, 1'."""
    name, by = pattern(order)
    shown = ", ".join(map(str, order[:SHOWN])) + ", ..." * (len(order) > SHOWN)
    return PATTERNS[name].format(by=by, order=shown)


def first_wave(one: np.ndarray, other: np.ndarray) -> str:
    """Return which of two arrays comes first, 'sine' or 'cosine', if they are those of the same angles; else ''."""
    if one.shape != other.shape or one.ndim < 2 or one.shape[-1] < 2 or one.dtype.kind != "f":
        return ""
    size = one**2 + other**2
    if not size.flat[0] > 0 or not np.allclose(size, size.flat[0], rtol=1e-5) or np.ptp(one) == 0:
        return ""
    slow, its = np.abs(one[..., -1]), np.abs(other[..., -1])  # the slowest angles are small
    return "sine" if slow.max() < its.min() else "cosine" if its.max() < slow.min() else ""


def moved(by: int) -> str:
    """Describe a shift: '2 lower'."""
    return f"{abs(by)} {'higher' if by > 0 else 'lower'}"
