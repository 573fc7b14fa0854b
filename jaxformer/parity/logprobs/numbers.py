"""Numbers of causes: solved by sections, and rounded to the fewest digits."""

import math
from collections.abc import Callable, Iterator

import numpy as np

GRID = 48
"""Number of first tries, at equal ratios."""
SECTIONS = 44
"""Number of golden sections: each leaves 0.62 of the interval."""
DIGITS = range(1, 7)


def rounded(value: float) -> Iterator[float]:
    """Yield a number with ever more digits, then itself."""
    if not math.isfinite(value):
        return
    found = dict.fromkeys([*(float(f"{value:.{digits}g}") for digits in DIGITS), value])
    yield from found


def n_digits(value: float) -> int:
    """Number of digits of a number as it is written."""
    return len(f"{value:.9g}".replace(".", "").replace("-", "").strip("0"))


def plain(value: float) -> float:
    """Round a number to nine digits, as it is shown."""
    return float(f"{value:.9g}")


def n_decimals(value: float) -> int:
    """Number of decimals of a number as it is written."""
    return len(f"{value:.9f}".rstrip("0").partition(".")[2])


def simplest(low: float, high: float) -> float:
    """Return the number with the fewest decimals in low < x <= high, next to the middle."""
    for decimals in range(1, 13):
        unit = 10.0**-decimals
        first, last = math.floor(low / unit + 1e-9) + 1, math.floor(high / unit + 1e-9)
        if first <= last:
            middle = round((low + high) / 2 / unit)
            return round(min(max(middle, first), last) * unit, decimals)
    return high


def least(error: Callable[[float], float], low: float, high: float) -> float:
    """Return the number between two positive ones with the least error: the best of a grid, then golden sections beside it."""
    grid = np.geomspace(low, high, GRID)
    errors = [error(x) for x in grid]
    best = int(np.argmin([e if e == e else math.inf for e in errors]))
    a, b = math.log(grid[max(best - 1, 0)]), math.log(grid[min(best + 1, GRID - 1)])
    shrink = (math.sqrt(5) - 1) / 2
    c, d = b - shrink * (b - a), a + shrink * (b - a)
    at_c, at_d = error(math.exp(c)), error(math.exp(d))
    for _ in range(SECTIONS):
        if at_c < at_d:
            b, d, at_d = d, c, at_c
            c = b - shrink * (b - a)
            at_c = error(math.exp(c))
        else:
            a, c, at_c = c, d, at_d
            d = a + shrink * (b - a)
            at_d = error(math.exp(d))
    return math.exp((a + b) / 2)
