"""Recognise numbers that code computes: fractions, roots and logarithms of integers; words for ordinals."""

import math
from collections.abc import Iterator

NEAR, MOST = 1e-9, 10**6
"""Relative tolerance at which a number is recognised, and the bound of the integers that are tried."""
PLAIN = 4
"""Number of characters up to which a number needs no explanation."""
BASES = (2, 10, 100, 1000, 10000, 100000, 500000, 1000000)
"""Numbers whose natural logarithms are recognised."""
ROUNDED = 2.0**-23
"""Distance from 1 up to which a factor is explained by a constant that one side rounds to float32."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def roots(x: float) -> Iterator[tuple[float, str]]:
    """Yield numbers near `x` of the forms 1/n, sqrt(n) and 1/sqrt(n), with their names."""
    size = abs(x)
    if not size or not math.isfinite(size):
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
    name = (next((name for _, name in roots(x)), "") or logarithm(x)) if len(plain) > PLAIN else ""
    return f"{plain} = {name}" if name else plain
