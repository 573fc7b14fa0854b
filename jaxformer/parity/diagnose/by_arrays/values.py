"""Explain plain differences of two arrays (another dtype, a factor, a sum with other factors), and describe the appearance of
unexplained ones."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.diagnose.by_arrays.order import order_along
from jaxformer.parity.diagnose.diagnosis import Candidate, plain
from jaxformer.parity.diagnose.evidence import Difference
from jaxformer.parity.diagnose.mutation import Change, Free, Mutation
from jaxformer.parity.diagnose.numbers_and_orders import arranged, is_plain, say
from jaxformer.parity.diagnose.solve import solved
from jaxformer.parity.numerics.metrics import EXPLAINED, distance
from jaxformer.parity.report.summarize import part_of

Factors = Mapping[str, tuple[complex, complex]]
"""Factors of each term: torch's and jax's."""
INPUT = "input"


def summed(factors: Factors) -> tuple[str, str]:
    """Return words for torch's sum, and for jax's."""
    if len(factors) == 1:
        ((name, (torch, jax)),) = factors.items()
        return of_one(name, torch, jax)
    mine, its = (" + ".join(times(name, both[side]) for name, both in factors.items() if both[side]) for side in (0, 1))
    if not mine or not its:
        return f"adds {mine or 'nothing of that'}", f"adds {its or 'nothing of that'}"
    ratios = {jax / torch for torch, jax in factors.values() if torch}
    if len(ratios) == 1 and all(torch for torch, _ in factors.values()):
        return f"adds {mine}", f"adds {number(*ratios)} times that"
    gone = [name for name, (torch, jax) in factors.items() if torch and not jax]
    if all(bool(torch) != bool(jax) for torch, jax in factors.values()):
        if len(gone) == 1 and not gone[0].startswith(INPUT):
            return f"goes on with {mine}", f"goes on with {its}, and leaves out {gone[0]}"
        residual = " (the residual)" * (INPUT in gone and not its.startswith(INPUT))
        return f"adds {mine}{residual}", f"adds {its} in the place of that"
    return f"adds {mine}", f"adds {its}"


def of_one(name: str, torch: complex, jax: complex) -> tuple[str, str]:
    """Return words for one term: it is missing, subtracted or scaled."""
    if not torch or not jax:
        there = f"adds {times(name, torch or jax)}" + " (the residual)" * (name == INPUT)
        lacks = f"does not add {name}" if not torch else "does not"
        return (there, lacks) if torch else (lacks, there)
    if jax == -torch:
        return f"adds {times(name, torch)}", "subtracts it"
    if torch == 1:
        return f"takes {name} as it is", f"multiplies it by {number(jax)}"
    if jax == 1:
        return f"multiplies {name} by {number(torch)}", "does not"
    rounded = ", that rounded to bfloat16" * is_rounded(torch, jax)
    return f"multiplies {name} by {number(torch)}", f"by {number(jax)}{rounded}"


def times(name: str, factor: complex) -> str:
    """Write a term with its factor, unless that is 1."""
    return name if factor == 1 else f"{number(factor)} {name}"


def number(factor: complex) -> str:
    """Write a factor: '4.89897949 = sqrt(24)'."""
    return say(factor) if isinstance(factor, (int, float)) else f"{factor:.9g}"


def is_rounded(torch: complex, jax: complex) -> bool:
    """True if jax's factor is torch's, rounded to bfloat16."""
    real = isinstance(torch, (int, float)) and isinstance(jax, (int, float))
    return real and float(np.asarray(torch).astype(jnp.bfloat16)) == jax


ALIKE = 1e-9
"""Tolerance (relL2) at which arrays count as equal in `appearance`."""
FARTHEST = 3
"""Largest shift along an axis that is recognised."""
TYPES = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-25}
"""Half the relative spacing of neighbouring numbers, by dtype."""


def appearance(jax: np.ndarray, torch: np.ndarray) -> str:
    """Describe a difference: 'only at positions 7-16 of 17; a factor of its own in each channel'; '' if nothing is noticed."""
    if jax.shape != torch.shape or not torch.ndim or {jax.dtype.kind, torch.dtype.kind} != {"f"}:
        return ""
    if (wrong := int((~np.isfinite(jax) & np.isfinite(torch)).sum())) or not np.isfinite(torch).all():
        return f"NaN or infinite in {wrong} of {jax.size} entries" if wrong else ""
    if not np.any(jax != torch):
        return ""
    found = [*where(jax, torch)]
    return "; ".join([*found, *([] if (how := next(kinds(jax, torch), "")) == "" else [how])])


def where(jax: np.ndarray, torch: np.ndarray) -> Iterator[str]:
    """Yield words for each axis along which only a part differs."""
    off = np.abs(jax - torch) > ALIKE * np.sqrt(np.square(torch).mean())
    for axis in range(torch.ndim):
        some = np.asarray(off.any(tuple(other for other in range(torch.ndim) if other != axis)))
        if some.any() and not some.all():
            name = "rows" if axis == 0 else "positions" if axis == 1 and torch.ndim == 3 else ""
            part = part_of(some, name)
            yield f"only {'at' if name == 'positions' else 'in'} {part}" + ("" if name else f" along axis {axis}")


def kinds(jax: np.ndarray, torch: np.ndarray) -> Iterator[str]:
    """Yield words for relations of jax's array to torch's, the plain ones first."""
    for axis in range(torch.ndim):
        for steps in (step for n in range(1, min(FARTHEST, torch.shape[axis] - 1) + 1) for step in (n, -n)):
            late, early = (
                np.take(array, range(max(by, 0), array.shape[axis] + min(by, 0)), axis)
                for array, by in ((jax, steps), (torch, -steps))
            )
            if early.any() and distance(late, early) <= ALIKE:
                yield f"torch's, {abs(steps)} {'later' if steps > 0 else 'earlier'} along axis {axis}"
    for axis in range(torch.ndim):
        if order := order_along(jax, torch, axis, ALIKE):
            yield f"torch's, with axis {axis} {arranged(order)}"
    for axis in range(torch.ndim):
        others = tuple(other for other in range(torch.ndim) if other != axis)
        name = "channel" if axis == torch.ndim - 1 else "row" if axis == 0 else f"place along axis {axis}"
        square = np.square(torch).sum(others, keepdims=True)
        factors = (jax * torch).sum(others, keepdims=True) / np.where(square > 0, square, 1)
        if torch.shape[axis] < torch.size and distance(factors * torch, jax) <= ALIKE:
            yield f"a factor of its own in each {name}"
        if torch.shape[axis] < torch.size and distance(torch + (jax - torch).mean(others, keepdims=True), jax) <= ALIKE:
            yield f"a number of its own added in each {name}"
    changes = np.abs(jax / torch - 1)[torch != 0]
    for name, half in TYPES.items():
        if changes.size and changes.max() <= 2 * half and np.median(changes) >= half / 8:
            yield f"the size of {name}'s rounding"


CLEAR = 1e3 * EXPLAINED
"""Least relL2 of a difference that is explained by a cap or an added number: either fits smaller ones by chance."""
SMALLER = (jnp.bfloat16, jnp.float16)


def multiplied(args: dict[str, Any]) -> str:
    """Return words for a factor."""
    return "jax gives torch's array negated: the other sign" if args["by"] == -1 else "jax gives torch's array times {by}"


def capped(args: dict[str, Any]) -> str:
    """Return words for a cap; one at 1 is a tanh."""
    return "jax applies tanh to torch's array" if args["at"] == 1 else "jax caps torch's array at {at}: {at} tanh(x / {at})"


ROUNDED = Change("values.rounded", "jax rounds torch's array to {type}", torch="")
ZEROS = Change("values.zeros", "jax gives zeros", torch="")
TIMES = Change("values.factor", multiplied, torch="")
CAPPED = Change("values.capped", capped, torch="")
ADDED = Change("values.added", "jax adds {number} to torch's array", torch="")
CAST = Change("values.cast", "jax gives {jax} where torch gives {torch}: a cast in jax's code", torch="")


def explain_cast(difference: Difference) -> Candidate | None:
    """Explain a dtype of jax's that is not that of torch's floats."""
    jax, torch = difference.jax.dtype, difference.torch.dtype
    casts = jax != torch and np.issubdtype(torch, np.floating)
    return plain(CAST, jax=str(jax), torch=str(torch)) if casts else None


def factor_between(jax: np.ndarray, torch: np.ndarray) -> tuple[float, float]:
    """Return the factor c for which c times torch's array is nearest to jax's, by least squares, and the residual (relL2)."""
    factor = float((jax * torch).sum() / (np.square(torch).sum() or 1.0))
    return factor, distance(jax, factor * torch)


def is_symptom(candidate: Candidate) -> bool:
    """True for a symptom, of which torch's code may tell the cause: a factor or an added number that nobody writes, or NaN."""
    if candidate.mutation.change.symptom:
        return True
    number = dict(candidate.mutation.args).get({TIMES: "by", ADDED: "number"}.get(candidate.mutation.change, ""))
    return number is not None and not is_plain(number)


def cap_between(jax: np.ndarray, torch: np.ndarray) -> float:
    """Return the cap c for which jax's array is c tanh(torch's / c); 0 if there is none."""
    least, most = float(np.abs(jax).max()), float(np.abs(torch).max())
    if not 0 < least < most:
        return 0.0
    free = Free(least, seeds=tuple(least * n for n in (1.01, 1.5, 3.0, 10.0, 100.0)))
    found = solved(lambda cap: cap * np.tanh(torch / cap), free, torch, jax, EXPLAINED)
    return found[0] if found else 0.0


def explain_plainly(difference: Difference) -> Candidate | None:
    """Explain an array by a smaller dtype, zeros, a factor, a cap or an added number.

    Example: 'jax gives torch's array times 4.89897949 = sqrt(24) (residual 3e-17)'.
    """
    jax, torch = difference.jax, difference.torch
    if torch.size < 2 or not np.isfinite(jax).all() or not np.isfinite(torch).all():
        return None
    for kind in SMALLER:
        if np.array_equal(torch.astype(kind).astype(jax.dtype), jax):
            return plain(ROUNDED, type=np.dtype(kind).name)
    if torch.any() and not jax.any():
        return plain(ZEROS)
    factor, residual = factor_between(jax, torch)
    if residual <= EXPLAINED < abs(factor - 1):
        return plain(TIMES, residual, by=round_number(factor))
    if distance(jax, torch) <= CLEAR:
        return None
    if cap := cap_between(jax, torch):
        return plain(CAPPED, at=cap)
    added = float((jax - torch).mean())
    residual = distance(jax, torch + added)
    return plain(ADDED, residual, number=round_number(added)) if residual <= EXPLAINED else None


def round_number(x: float) -> float:
    """Round to 13 digits: the last ones are rounding."""
    return float(f"{x:.13g}")


MANY = 1000
"""Number of entries that are enough to see if factors fit by chance."""


FACTORS = Change("sum.factors", lambda args: summed(args)[1], lambda args: summed(args)[0])


def explain_sum(difference: Difference) -> Candidate | None:
    """Explain arrays that are sums of earlier arrays, with other factors on each side.

    torch's array itself is a term only if the other terms do not explain both sides: torch may have passed it on unchanged.
    """
    made, every = difference.made.before, difference.evidence.before
    says = factors_apart(made, difference)
    return says if says or len(made) == len(every) else factors_apart(every, difference)


def factors_apart(before: Mapping[str, np.ndarray], difference: Difference) -> Candidate | None:
    """Explain a difference by sums of these arrays that give both sides: 'torch adds a; jax does not'; None otherwise."""
    arrays = difference.torch, difference.jax
    terms = {name: array for name, array in before.items() if same_but_for_ones(array, arrays[0]) and np.isfinite(array).all()}
    if not terms or not all(np.isfinite(array).all() for array in arrays):
        return None
    matrix = np.stack([np.broadcast_to(array, arrays[0].shape).ravel() for array in terms.values()], -1)
    wanted = np.stack([array.ravel() for array in arrays], -1)
    if len(np.unique(np.concatenate([matrix, wanted], -1)[:MANY], axis=0)) <= len(terms) + 1:
        return None  # so many factors fit any array
    factors = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    residual = max(map(distance, (matrix @ factors).T, wanted.T))
    differing = [(name, t, j) for name, (t, j) in zip(terms, np.round(factors, 9) + 0.0, strict=True) if t != j]
    if residual > EXPLAINED or not differing:
        return None
    return Candidate(Mutation(FACTORS, (), tuple((name, (t.item(), j.item())) for name, t, j in differing)), residual)


def is_another_array(candidate: Candidate) -> bool:
    """True for a cause by which one earlier array stands in the place of another."""
    return candidate.mutation.change == FACTORS and sorted(pair for _, pair in candidate.mutation.args) == [(0, 1), (1, 0)]


def same_but_for_ones(array: np.ndarray, other: np.ndarray) -> bool:
    """True if an array has another one's shape, but for axes of size 1 along which it is shared, as positions are by rows."""
    return array.ndim == other.ndim and all(one in (1, many) for one, many in zip(array.shape, other.shape, strict=True))
