"""The number that gives jax's array, solved for, and how it is said."""

import math
from collections.abc import Callable, Iterable

import numpy as np

from jaxformer.parity.numerics.metrics import EXPLAINED, distance

Run = Callable[[float], np.ndarray | None]
SEEDS = (0.5, 2.0, 0.25, 4.0, 0.1, 10.0, -1.0, 0.0)
"""Multiples of torch's number from which the search may begin."""
STEPS = 9
HOPEFUL = 0.3
"""The least cosine between what a change of the number does and the difference."""
DIGITS = range(1, 10)
WHOLE = 1e-9


def solved(run: Run, start: float, torch: np.ndarray, jax: np.ndarray) -> tuple[float, float] | None:
    """The number, as round as can be, and how far what it gives is off (relL2); None where none is found."""
    wanted, size = jax - torch, float(np.linalg.norm(jax - torch))
    step = 1e-4 * (abs(start) or 1.0)
    if (moved := run(start + step)) is None or not np.isfinite(moved).all():
        return None
    change = moved - torch
    if not change.any() or abs((change * wanted).sum()) < HOPEFUL * np.linalg.norm(change) * size:
        return None
    linear = start + step * float((change * wanted).sum() / (change * change).sum())
    seeds = [start, linear, *(start * each for each in SEEDS)]
    best = min(seeds, key=lambda x: off(run(x), jax))
    if (found := newton(run, best, jax)) is None:
        return None
    for value in rounded(found):
        if (residual := off(run(value), jax)) <= EXPLAINED:
            return value, residual
    return None


def newton(run: Run, x: float, wanted: np.ndarray) -> float | None:
    """Least squares in one number; None where it does not come near."""
    residual = off(run(x), wanted)
    for _ in range(STEPS):
        if residual <= EXPLAINED / 30:
            break
        step = 1e-6 * (abs(x) or 1e-3)
        here, beside = run(x), run(x + step)
        if here is None or beside is None:
            return None
        slope = (beside - here) / step
        if not (bottom := float((slope * slope).sum())) or not math.isfinite(bottom):
            return None
        move = float((slope * (wanted - here)).sum()) / bottom
        for part in (1.0, 0.3, 0.1):
            if (new := off(run(x + part * move), wanted)) < residual:
                x, residual = x + part * move, new
                break
        else:
            break
    return x if residual < 1e-7 else None


def off(found: np.ndarray | None, wanted: np.ndarray) -> float:
    """relL2; infinite where nothing is found."""
    return math.inf if found is None or found.shape != wanted.shape else distance(found, wanted)


def rounded(x: float) -> list[float]:
    """With few digits first; a fraction or root where it is one."""
    return [*(float(f"{x:.{n}g}") for n in DIGITS), *(value for value, _ in roots(x)), float(np.float32(x)), x]


def roots(x: float) -> Iterable[tuple[float, str]]:
    """Whole numbers, their roots, and both below 1, near to a number."""
    sign, size = ("-" if x < 0 else ""), abs(x)
    if not size or not math.isfinite(size):
        return
    for value, says in ((size, "{}"), (1 / size, "1/{}"), (size**2, "sqrt({})"), (size**-2, "1/sqrt({})")):
        whole = round(value)
        if 0 < whole < 10**6 and abs(value - whole) < WHOLE * value:
            exact = {"{}": whole, "1/{}": 1 / whole, "sqrt({})": math.sqrt(whole), "1/sqrt({})": 1 / math.sqrt(whole)}[says]
            yield math.copysign(exact, x), sign + says.format(whole)


def say(x: float) -> str:
    """'0.5', '4.89897949 = sqrt(24)'"""
    names = [name for _, name in roots(x) if "sqrt" in name or ("/" in name and len(f"{x:.9g}") > 6)]
    return f"{x:.9g}" + (f" = {names[0]}" if names else "")
