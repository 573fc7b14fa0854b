"""Plain differences of two arrays: another type, a factor, a number added, other factors in a sum."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.diagnose.by_arrays.sums import summed
from jaxformer.parity.diagnose.constants import is_plain
from jaxformer.parity.diagnose.diagnosis import Candidate, plain
from jaxformer.parity.diagnose.evidence import Difference
from jaxformer.parity.diagnose.mutation import Change, Mutation
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

CLEAR = 1e3 * EXPLAINED
"""relL2 of a difference to which a cap or a number added does not fit by itself."""
SMALLER = (jnp.bfloat16, jnp.float16)


def multiplied(args: dict[str, Any]) -> str:
    """Words for a factor."""
    return "jax gives torch's array negated: the other sign" if args["by"] == -1 else "jax gives torch's array times {by}"


ROUNDED = Change("values.rounded", "jax rounds torch's array to {type}", torch="")
ZEROS = Change("values.zeros", "jax gives zeros", torch="")
TIMES = Change("values.factor", multiplied, torch="")
CAPPED = Change("values.capped", "jax caps torch's array at {at}: {at} tanh(x / {at})", torch="")
ADDED = Change("values.added", "jax adds {number} to torch's array", torch="")
CAST = Change("values.cast", "jax gives {jax} where torch gives {torch}: a cast in jax's code", torch="")


def explain_cast(difference: Difference) -> Candidate | None:
    """Where jax gives another type than torch's floats."""
    ours, theirs = difference.jax.dtype, difference.torch.dtype
    casts = ours != theirs and np.issubdtype(theirs, np.floating)
    return plain(CAST, jax=str(ours), torch=str(theirs)) if casts else None


def factor_between(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, float]:
    """c for which c times torch's array is nearest to jax's, by least squares, and how far the two are apart then: relL2."""
    factor = float((ours * theirs).sum() / (np.square(theirs).sum() or 1.0))
    return factor, distance(ours, factor * theirs)


def is_symptom(candidate: Candidate) -> bool:
    """Whether it is a factor, or a number added, that nobody writes: torch's code may tell where it comes from."""
    number = dict(candidate.mutation.args).get({TIMES: "by", ADDED: "number"}.get(candidate.mutation.change, ""))
    return number is not None and not is_plain(number)


def cap_between(ours: np.ndarray, theirs: np.ndarray) -> float:
    """c for which jax's array is c tanh(torch's / c); 0 where there is none."""
    at = np.argmax(np.abs(theirs))
    x, y = abs(float(theirs.flat[at])), abs(float(ours.flat[at]))
    if not 0 < y < x:
        return 0.0
    low, high = y, 2 * x / np.sqrt(3 * (1 - y / x))  # tanh(u) > u - u^3/3; twice, for rounding
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * np.tanh(x / middle) < y else (low, middle)
    cap = round_number(low)
    near = [
        value for n in range(1, 14) if distance(ours, (value := float(f"{cap:.{n}g}")) * np.tanh(theirs / value)) <= EXPLAINED
    ]
    return near[0] if near else 0.0


def explain_plainly(difference: Difference) -> Candidate | None:
    """'jax gives torch's array times 4.89897949 = sqrt(24) (residual 3e-17)', where it is so plain."""
    ours, theirs = difference.jax, difference.torch
    if theirs.size < 2 or not np.isfinite(ours).all() or not np.isfinite(theirs).all():
        return None
    for kind in SMALLER:
        if np.array_equal(theirs.astype(kind).astype(ours.dtype), ours):
            return plain(ROUNDED, type=np.dtype(kind).name)
    if theirs.any() and not ours.any():
        return plain(ZEROS)
    factor, residual = factor_between(ours, theirs)
    if residual <= EXPLAINED < abs(factor - 1):
        return plain(TIMES, residual, by=round_number(factor))
    if distance(ours, theirs) <= CLEAR:
        return None
    if cap := cap_between(ours, theirs):
        return plain(CAPPED, at=cap)
    added = float((ours - theirs).mean())
    residual = distance(ours, theirs + added)
    return plain(ADDED, residual, number=round_number(added)) if residual <= EXPLAINED else None


def round_number(x: float) -> float:
    """Without the last digits, where rounding is."""
    return float(f"{x:.13g}")


MANY = 1000
"""Entries that are enough to tell whether factors fit by chance."""


FACTORS = Change("sum.factors", lambda args: summed(args)[1], lambda args: summed(args)[0])


def explain_sum(difference: Difference) -> Candidate | None:
    """In which factors both sides' sums differ. torch's array counts among the terms only if the others do not tell: torch may
    have handed it on as it was."""
    made, every = difference.made.before, difference.evidence.before
    says = factors_apart(made, difference)
    return says if says or len(made) == len(every) else factors_apart(every, difference)


def factors_apart(before: Mapping[str, np.ndarray], difference: Difference) -> Candidate | None:
    """'torch adds a; jax does not', where these add up to both sides."""
    arrays = difference.torch, difference.jax
    terms = {name: array for name, array in before.items() if same_but_for_ones(array, arrays[0]) and np.isfinite(array).all()}
    if not terms or not all(np.isfinite(array).all() for array in arrays):
        return None
    matrix = np.stack([np.broadcast_to(array, arrays[0].shape).ravel() for array in terms.values()], -1)
    wanted = np.stack([array.ravel() for array in arrays], -1)
    if len(np.unique(np.concatenate([matrix, wanted], -1)[:MANY], axis=0)) <= len(terms) + 1:
        return None  # so many factors fit whatever there is
    factors = np.linalg.lstsq(matrix, wanted, rcond=None)[0]
    residual = max(map(distance, (matrix @ factors).T, wanted.T))
    differing = [(name, t, j) for name, (t, j) in zip(terms, np.round(factors, 9) + 0.0, strict=True) if t != j]
    if residual > EXPLAINED or not differing:
        return None
    return Candidate(Mutation(FACTORS, (), tuple((name, (t.item(), j.item())) for name, t, j in differing)), residual)


def same_but_for_ones(array: np.ndarray, other: np.ndarray) -> bool:
    """Whether an array has another one's shape, or is shared along some of its axes, as positions are by all rows."""
    return array.ndim == other.ndim and all(one in (1, many) for one, many in zip(array.shape, other.shape, strict=True))
