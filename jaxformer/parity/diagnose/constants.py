"""Numbers that code computes: fractions of whole numbers, and roots of them; ordinals."""

import math
from collections.abc import Iterator

NEAR, MOST = 1e-9, 10**6
"""How near a number has to be, as a part of it; and the largest whole number."""
PLAIN = 4
"""A number of so few letters says itself what it is."""
BASES = (2, 10, 100, 1000, 10000, 100000, 500000, 1000000)
"""Of logarithms that are known by them."""
ROUNDED = 2.0**-23
"""A factor this near to 1 comes of a constant that one side rounds to float32."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def roots(x: float) -> Iterator[tuple[float, str]]:
    """Fractions of whole numbers, and roots of them, near to a number."""
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
    """'-log(1000)', of a power of ten or another usual base; ''."""
    sign = "-" if x < 0 else ""
    return next((f"{sign}log({base})" for base in BASES if math.isclose(abs(x), math.log(base), rel_tol=NEAR)), "")


def is_plain(x: float) -> bool:
    """Tell whether somebody may have written a number: it has few digits, or is a root or a logarithm of a plain one."""
    return len(f"{x:.9g}") <= PLAIN or " = " in say(x)


def say(x: float) -> str:
    """'0.5', '4.89897949 = sqrt(24)', '-6.90775528 = -log(1000)', '1.00000004 (a constant in float32)'"""
    plain = f"{x:.9g}"
    if 0 < abs(x - 1) <= ROUNDED:
        return f"{plain} (a constant in float32)"
    name = (next((name for _, name in roots(x)), "") or logarithm(x)) if len(plain) > PLAIN else ""
    return f"{plain} = {name}" if name else plain
