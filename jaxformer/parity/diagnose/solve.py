"""Solve for the free parameter of a mutation: the number that gives jax's array."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np

from jaxformer.parity.diagnose.mutation import Free
from jaxformer.parity.diagnose.numbers_and_orders import roots
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

Run = Callable[..., np.ndarray | None]
Numbers = tuple[float, ...]
SEEDS = (0.5, 2.0, 0.25, 4.0, 0.1, 10.0, -1.0, 0.0)
"""Multiples of torch's number from which the search may start."""
STEPS = 9
SHORTER, MUCH_SHORTER = (1.0, 0.3, 0.1), (1.0, 0.3, 0.1, 0.03, 0.01)
"""Parts of a step that are tried until one comes nearer."""
RANK = 1e-10
"""Least singular value, relative to the largest, at which numbers count as independent."""
SLOW, MOST_SLOW = 0.7, 1
"""Share of the difference that a slow step leaves, and number of slow steps in a row after which the solver gives up."""
HOPEFUL = 0.3
"""Least cosine between the effect of a change of the number and the difference."""
WORSE = 4.0
"""Largest ratio of the difference at a start value to torch's difference, for a number that torch does not have."""
VISIBLE = 1e-9
"""Least change (relL2) of the array that counts: smaller ones are too near to rounding."""
PARTS = 12
"""Number of parts into which the range of steps is cut at each stage of the search for a threshold."""
GROWN, LARGEST_STEP = 6, 1e-3
NEARLY = 1e-7
"""Residual (relL2) from which a rounder number may still be exact."""
LINEAR = 0.05
"""Largest share of the difference that a linear estimate may leave."""
NULL = 1e-12
"""Share of torch's number below which a number counts as 0, even where an exact 0 gives NaN in masked entries."""
DIGITS = range(1, 10)


def solved(
    run: Run, free: Free, torch: np.ndarray, jax: np.ndarray, limit: float, accepts: Callable[[float], bool] | None = None
) -> tuple[float, float] | None:
    """Return the number with the fewest digits that fits, and its residual (relL2), at most `limit`; None if there is none.

    With `accepts`, several numbers may fit, as they do one number such as a loss: the first that is accepted is returned.
    """
    run = cache(run)
    if free.steps:
        return between_steps(run, free.steps, jax, limit)
    seeds = sorted(seeds_of(run, free, torch, jax), key=lambda x: off(run(x), jax))
    if not seeds or (free.seeds and off(run(seeds[0]), jax) > WORSE * off(torch, jax)):
        return None
    if accepts is not None:
        return next((found for found in different(run, seeds, free, jax, limit) if accepts(found[0])), None)
    if seeds[0] == free.start and len(seeds) > 1 and not free.seeds and by_first_step(run, seeds[0], torch, jax) is None:
        return None  # no other number comes nearer
    return from_seed(run, seeds[0], free, jax, limit)


def different(run: Run, seeds: Sequence[float], free: Free, jax: np.ndarray, limit: float) -> Iterator[tuple[float, float]]:
    """Yield the different numbers that fit, from the nearest seed on, until a seed leads nowhere."""
    known: list[float] = []
    for seed in seeds:
        if (found := from_seed(run, seed, free, jax, limit)) is None:
            return
        if not any(math.isclose(found[0], each, rel_tol=NEARLY) for each in known):
            known.append(found[0])
            yield found


def from_seed(run: Run, seed: float, free: Free, jax: np.ndarray, limit: float) -> tuple[float, float] | None:
    """Return the number with the fewest digits that fits near one seed, and its residual; None if there is none."""
    (found,) = gauss_newton(run, (seed,), jax)
    if EXPLAINED < off(run(found), jax) <= limit:  # float32's rounding, or not there yet
        (found,) = gauss_newton(run, (found,), jax, most_slow=STEPS)
    least = off(run(found), jax)
    if not least <= max(limit, NEARLY):
        return None
    if abs(found) <= NULL * (abs(free.start) or 1.0) and np.isfinite(off(run(0.0), jax)):
        found = 0.0
    for value in rounded(found):
        if (residual := off(run(value), jax)) <= max(EXPLAINED, min(limit, 2 * least)):
            return (value if abs(value) > NULL * (abs(free.start) or 1.0) else 0.0), residual
    return None


def that_differ(
    doubled: Sequence[np.ndarray | None], torch: np.ndarray, jax: np.ndarray, moved: np.ndarray | None = None
) -> list[int]:
    """Return which of several equal numbers have one other value; empty if no such choice explains jax's array.

    `doubled`: arrays of the runs in which one of the numbers alone is doubled; `moved`: array of a run in which another number,
    which is free, is a little larger. Their effects are taken for linear.
    """
    arrays = [each for each in (*doubled, torch if moved is None else moved) if each is not None and each.shape == jax.shape]
    if len(arrays) <= len(doubled) or torch.shape != jax.shape or not all(np.isfinite(each).all() for each in arrays):
        return []
    effects, wanted = np.stack([(each - torch).ravel() for each in arrays], -1), (jax - torch).ravel()
    shares = np.linalg.lstsq(effects, wanted, rcond=RANK)[0][:-1]
    most = shares[np.abs(shares).argmax()]
    if not most:
        return []
    chosen = np.flatnonzero(shares / most > 1 / 2)
    few = np.stack([effects[:, chosen].sum(-1), effects[:, -1]], -1)
    left = wanted - few @ np.linalg.lstsq(few, wanted, rcond=RANK)[0]
    return chosen.tolist() if np.linalg.norm(left) <= LINEAR * np.linalg.norm(wanted) else []


def between_steps(run: Run, steps: tuple[float, ...], jax: np.ndarray, limit: float) -> tuple[float, float] | None:
    """Search a number between two neighbouring steps, by sections: the nearer, the fewer entries are on the wrong side."""
    middles = [(one + other) / 2 for one, other in itertools.pairwise(steps)]
    first, last = 0, len(middles) - 1
    while first < last:
        tried = sorted({round(first + (last - first) * n / PARTS) for n in range(PARTS + 1)})
        best = min(range(len(tried)), key=[off(run(middles[i]), jax) for i in tried].__getitem__)
        if len(tried) == last - first + 1:
            first = last = tried[best]
        else:
            first, last = tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)]
    found = ((value, off(run(value), jax)) for value in (rounded(middles[first]) if middles else ()))
    return next(((value, residual) for value, residual in found if residual <= limit), None)


def seeds_of(run: Run, free: Free, torch: np.ndarray, jax: np.ndarray) -> list[float]:
    """Return start values of the search; if torch's number leads nowhere, only the integers beside it, if it is one."""
    if free.seeds:
        return [*free.seeds]
    other = run(2 * free.start or 1.0)
    if other is not None and np.array_equal(other, torch):
        return []  # no code reads the number
    near = (free.start - 1, free.start + 1) if free.start and float(free.start).is_integer() else ()
    seeds = [free.start, *near, *(free.start * each for each in SEEDS)]
    if (linear := by_first_step(run, free.start, torch, jax)) is not None:
        return [*seeds, linear]
    return seeds if free.sure else [*near]


def by_first_step(run: Run, start: float, torch: np.ndarray, jax: np.ndarray) -> float | None:
    """Extrapolate linearly from torch's number; None if its change does not lead towards jax's array."""
    if jax.shape != torch.shape:
        return None
    wanted, change, step = jax - torch, np.zeros_like(torch), 1e-4 * (abs(start) or 1.0)
    for _ in range(GROWN):
        if (moved := run(start + step)) is None or not np.isfinite(moved).all():
            return None
        change = moved - torch
        if np.linalg.norm(change) > VISIBLE * np.linalg.norm(torch):
            break
        if step > LARGEST_STEP:
            return None
        step *= 100
    square = float((change * change).sum())
    along = float((change * wanted).sum())
    if not square or abs(along) < HOPEFUL * math.sqrt(square) * float(np.linalg.norm(wanted)):
        return None
    return start + step * along / square


def gauss_newton(
    run: Run,
    start: Sequence[float],
    wanted: np.ndarray,
    steps: int = STEPS,
    most_slow: int = MOST_SLOW,
    parts: Sequence[float] = SHORTER,
) -> Numbers:
    """Minimise the difference by Gauss-Newton steps; return the best numbers found. `most_slow`: number of slow steps in a row
    after which the solver gives up; `parts`: those of a step that are tried."""
    best = np.array(start, np.float64)
    residual, slow = off(run(*start), wanted), 0
    for _ in range(steps):
        if residual <= EXPLAINED / 30 or slow > most_slow or (slopes := slopes_of(run, best, wanted)) is None:
            break
        move = np.linalg.lstsq(slopes, (wanted - run(*best.tolist())).ravel(), rcond=RANK)[0]
        nearer = ((x, off(run(*x.tolist()), wanted)) for x in (best + part * move for part in parts))
        x, new = next((each for each in nearer if each[1] < residual), (best, residual))
        if new == residual:
            break
        slow = slow + 1 if new > SLOW * residual else 0
        best, residual = x, new
    return tuple(best.tolist())


def slopes_of(run: Run, x: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """Compute the slopes of the flattened array by each number, from finite differences; None if one is not finite, or no
    number has an effect."""
    here, found = run(*x.tolist()), []
    for i, step in enumerate(1e-5 * np.maximum(np.abs(x), 1e-4)):
        beside = run(*(x + step * (np.arange(x.size) == i)).tolist())
        if here is None or beside is None or not here.shape == beside.shape == wanted.shape:
            return None
        found.append((beside - here).ravel() / step)
    slopes = np.stack(found, -1)
    return slopes if np.isfinite(slopes).all() and slopes.any() else None


def off(found: np.ndarray | None, wanted: np.ndarray) -> float:
    """Return the relL2 difference; infinite if there is no array, or one of another shape."""
    return math.inf if found is None or found.shape != wanted.shape else distance(found, wanted)


def rounded(x: float) -> list[float]:
    """Return roundings of a number: integers and numbers with few digits first, then fractions and roots, float32, itself."""
    whole = float(math.floor(x)), float(math.ceil(x))
    return [*whole, *(float(f"{x:.{n}g}") for n in DIGITS), *(value for value, _ in roots(x)), float(np.float32(x)), x]
