"""Words for numbers that code computes (fractions, roots, logarithms of integers) and for orders of an array's pieces."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

NEAR, MOST = 1e-9, 10**6
"""Relative tolerance at which a number is recognised, and the bound of the integers that are tried."""
PLAIN = 4
"""Number of characters up to which a number needs no explanation."""
ROUND = 2
"""Number of digits, without zeros, up to which it needs none either."""
BASES = (2, 10, 100, 1000, 10000, 100000, 500000, 1000000)
"""Numbers whose natural logarithms are recognised."""
ROUNDED = 2.0**-23
"""Distance from 1 up to which a factor is explained by a constant that one side rounds to float32."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def roots(x: float) -> Iterator[tuple[float, str]]:
    """Yield numbers near `x` of the forms 1/n, sqrt(n) and 1/sqrt(n), with their names."""
    size = abs(x)
    if not 1 / MOST <= size <= MOST:
        return
    exact = {"1/{}": lambda n: 1 / n, "sqrt({})": math.sqrt, "1/sqrt({})": lambda n: 1 / math.sqrt(n)}
    for value, says in ((1 / size, "1/{}"), (size**2, "sqrt({})"), (size**-2, "1/sqrt({})")):
        whole = round(value)
        if (
            1 < whole < MOST
            and abs(value - whole) < NEAR * value
            and not (value != 1 / size and math.isqrt(whole) ** 2 == whole)
        ):
            yield math.copysign(exact[says](whole), x), ("-" if x < 0 else "") + says.format(whole)


def logarithm(x: float) -> str:
    """Return '-log(1000)' if the number is the logarithm of one of `BASES`, or its negative; else ''."""
    sign = "-" if x < 0 else ""
    return next((f"{sign}log({base})" for base in BASES if math.isclose(abs(x), math.log(base), rel_tol=NEAR)), "")


def is_plain(x: float) -> bool:
    """True if a person may have written the number: it has few digits, or is a root or logarithm of an integer."""
    return len(f"{x:.9g}") <= PLAIN or " = " in say(x)


def say(x: float) -> str:
    """Write a number: '0.5', '4.89897949 = sqrt(24)', '-6.90775528 = -log(1000)', '1.00000004 (a constant in float32)'."""
    plain = f"{x:.9g}"
    if 0 < abs(x - 1) <= ROUNDED:
        return f"{plain} (a constant in float32)"
    is_round = len(plain) <= PLAIN or len(plain.partition("e")[0].lstrip("-0.")) <= ROUND
    name = "" if is_round else next((name for _, name in roots(x)), "") or logarithm(x)
    return f"{plain} = {name}" if name else plain


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
