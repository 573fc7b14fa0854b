"""Why a module differs: hypotheses about what each side computed, tried on the values that were recorded.

A hypothesis is a formula with choices: a layer norm has an epsilon, a bias or none, and so on. A cause is named only where one
combination of choices gives torch's array to 1e-12, and another one ours, in float64; it says in which choices they differ.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.explain.formulas import HYPOTHESES, Choices, Evidence, Hypothesis
from jaxformer.parity.numerics.metrics import EXPLAINED, UNIT_ROUNDOFF, distance
from jaxformer.parity.report.summarize import part_of

ALL = slice(None)
FAR, NEAR = 3, 2
"""In how many choices torch may differ from what is usual, and ours from torch."""
OWN_FACTORS = 1e-2
"""How near a difference is to factors of rows, and how much these differ, where it comes from them."""
FAILURES = (ArithmeticError, LookupError, MemoryError, ParityError, TypeError, ValueError)
"""How arrays break an explanation."""

Found = tuple[dict[str, str], float]
"""What was chosen, and how far it is off."""
Hints = dict[Hypothesis, tuple[Mapping[str, str], Mapping[str, str]]]
"""What explained torch and us before: layers repeat, and so do their bugs."""


def cause_of(explanation: Callable[..., str], *given: Any, **named: Any) -> str:
    """What an explanation says, '' where it fails: a comparison goes on without a cause. Every cause is asked for here."""
    with np.errstate(all="ignore"):
        try:
            return explanation(*given, **named)
        except FAILURES:
            return ""


def explain(evidence: Evidence, ours: np.ndarray, theirs: np.ndarray, hints: Hints) -> str:
    """'torch epsilon 1e-05; jax epsilon 1e-06 (residual 7e-16)', or '' where nothing explains both sides."""
    if ours.shape != theirs.shape or not theirs.size:
        return ""
    if np.issubdtype(theirs.dtype, np.integer):
        return explain_ids(ours, theirs)
    if not theirs.ndim or np.iscomplexobj(theirs):
        return explain_sum(evidence, ours, theirs)
    before = {name: x for name, x in evidence.before.items() if x.ndim and x.size and not np.iscomplexobj(x)}
    row, whole = fullest(theirs), replace(evidence, before=before)
    for hypothesis in HYPOTHESES:
        choices = hypothesis.choices(whole)
        if not choices:
            continue
        of_row = hypothesis.choices(only(row, whole, len(theirs)))
        grounds = [(of_row, row)] * (names_of(of_row) == names_of(choices)) + [(choices, ALL)]
        usual = {what: next(iter(options)) for what, options in choices.items()}
        torch_hint, jax_hint = (offered(hint, choices) for hint in hints.get(hypothesis, (usual, {})))
        if not (found := search(hypothesis, grounds, torch_hint or usual, theirs, FAR)):
            continue
        torch_chose, _ = explained = found
        starts = [start for start in (jax_hint, torch_chose) if start]
        found = next((found for start in starts if (found := search(hypothesis, grounds, start, ours, NEAR))), None)
        if found and (said := apart(choices, explained, found)):
            hints[hypothesis] = torch_chose, found[0]
            return said
    return explain_sum(evidence, ours, theirs)


def apart(choices: Choices, theirs: Found, ours: Found) -> str:
    """In which choices both sides differ; '' if in none."""
    differing = [what for what in choices if theirs[0][what] != ours[0][what]]
    sides = [", ".join(f"{what} {chose[what]}" for what in differing) for chose, _ in (theirs, ours)]
    return f"torch {sides[0]}; jax {sides[1]} (residual {max(theirs[1], ours[1]):.0e})" if differing else ""


def offered(hint: Mapping[str, str], choices: Choices) -> Mapping[str, str]:
    """A hint, if it can be chosen here too; else nothing."""
    fits = hint.keys() == choices.keys() and all(name in choices[what] for what, name in hint.items())
    return hint if fits else {}


def fullest(array: np.ndarray) -> slice:
    """The row of a batch that holds most."""
    size = np.square(np.where(np.isfinite(array), array, 0)).reshape(len(array), -1).sum(1)
    return slice(best := int(size.argmax()), best + 1)


def only(row: slice, evidence: Evidence, rows: int) -> Evidence:
    """What was at hand for one row; arrays without rows stay."""

    def cut(array: np.ndarray) -> np.ndarray:
        return array[row] if array.shape[:1] == (rows,) else array

    before = {name: cut(array) for name, array in evidence.before.items()}
    return replace(evidence, before=before, masks=tuple(map(cut, evidence.masks)))


def names_of(choices: Choices) -> dict[str, list[str]]:
    """What may be chosen."""
    return {what: list(options) for what, options in choices.items()}


def search(
    hypothesis: Hypothesis, grounds: Sequence[tuple[Choices, slice]], start: Mapping[str, str], wanted: np.ndarray, most: int
) -> Found | None:
    """The combination nearest to a first one that gives the array, and how far it is off. `grounds` are the choices for some
    rows of it each, all rows coming last: one row tells nearly always that a combination is wrong."""
    for chosen in near(grounds[-1][0], start, most):
        residuals = (residual_of(hypothesis, choices, chosen, wanted[rows]) for choices, rows in grounds)
        if all((residual := found) <= EXPLAINED for found in residuals):
            return chosen, residual
    return None


def residual_of(hypothesis: Hypothesis, choices: Choices, chosen: Mapping[str, str], wanted: np.ndarray) -> float:
    """relL2; infinite where sizes do not go together."""
    with np.errstate(all="ignore"):
        try:
            array = hypothesis.compute(**{what: choices[what][name] for what, name in chosen.items()})
            return distance(array, wanted)
        except (ArithmeticError, ValueError):
            return math.inf


def near(choices: Choices, start: Mapping[str, str], most: int) -> Iterator[dict[str, str]]:
    """Every combination with at most so many others than the first choices, those with few of them first."""
    for count in range(min(most, len(choices)) + 1):
        for changed in itertools.combinations(choices, count):
            others = ([name for name in choices[what] if name != start[what]] for what in changed)
            for names in itertools.product(*others):
                yield {**start, **dict(zip(changed, names, strict=True))}


def explain_ids(ours: np.ndarray, theirs: np.ndarray) -> str:
    """Where one side's ids are the other's and a number."""
    shifts = np.unique(ours.astype(np.int64) - theirs) if ours.dtype.kind == theirs.dtype.kind else np.array([])
    return f"jax looks up ids {shifts[0]:+d} from torch's" if shifts.size == 1 else ""


def explain_sum(evidence: Evidence, ours: np.ndarray, theirs: np.ndarray) -> str:
    """Where both sides are sums of what came before with constant factors: in which factors they differ."""
    fitting = {
        name: array
        for name, array in evidence.before.items()
        if same_but_for_ones(array, theirs) and same_but_for_ones(array, ours)
    }
    terms = {name: array for name, array in fitting.items() if np.isfinite(array).all()}
    if not terms:
        return ""
    matrix = np.stack([np.broadcast_to(array, theirs.shape).ravel() for array in terms.values()], -1)
    factors, worst = [], 0.0
    for wanted in (theirs, ours):
        if not np.isfinite(wanted).all():
            return ""
        solved, *_ = np.linalg.lstsq(matrix, wanted.ravel(), rcond=None)
        worst = max(worst, distance(matrix @ solved, wanted.ravel()))
        factors.append(np.round(solved, 9) + 0.0)
    differing = [(name, t, j) for name, t, j in zip(terms, *factors, strict=True) if t != j]
    if worst > EXPLAINED or not differing:
        return ""
    sides = [", ".join(f"{values[side]:.9g} times {values[0]}" for values in differing) for side in (1, 2)]
    return f"torch adds {sides[0]}; jax adds {sides[1]} (residual {worst:.0e})"


def same_but_for_ones(array: np.ndarray, other: np.ndarray) -> bool:
    """Whether an array has another one's shape, or is shared along some of its axes, as positions are by all rows."""
    return array.ndim == other.ndim and all(one in (1, many) for one, many in zip(array.shape, other.shape, strict=True))


def is_rounded_constant(ours: np.ndarray, theirs: np.ndarray, bias: np.ndarray | float = 0.0) -> bool:
    """Whether a constant that one side rounds to float32 may be all: no entry is off by more than that, and rows are not each
    off by a factor of their own, as another epsilon makes them. `bias` is added behind it."""
    if ours.shape != theirs.shape or not theirs.ndim or {ours.dtype.kind, theirs.dtype.kind} != {"f"}:
        return False
    off, scaled = ours - theirs, theirs - bias
    if not np.isfinite(off).all() or not 0 < np.abs(off).max(initial=0.0) <= 2 * UNIT_ROUNDOFF * np.abs(theirs).max(
        initial=0.0
    ):
        return False
    size = np.square(scaled).sum(-1, keepdims=True)
    factors = (off * scaled).sum(-1, keepdims=True) / np.where(size, size, 1.0)
    own = distance(factors * scaled, off) < OWN_FACTORS
    return not (own and np.ptp(factors) > OWN_FACTORS * np.abs(factors).max())


def explain_gradient(ours: np.ndarray, theirs: np.ndarray) -> str:
    """What is plain about a gradient that differs: NaN, a constant factor, or rows that get none on one side."""
    if ours.shape != theirs.shape or {ours.dtype.kind, theirs.dtype.kind} != {"f"} or not np.isfinite(theirs).all():
        return ""
    if wrong := int((~np.isfinite(ours)).sum()):
        return f"jax's gradient is NaN or infinite in {wrong} of {ours.size} entries, torch's in none"
    factor = float((ours * theirs).sum() / max(float(np.square(theirs).sum()), np.finfo(np.float64).tiny))
    residual = distance(ours, factor * theirs)
    if residual <= EXPLAINED < abs(factor - 1):
        return f"jax's gradient is {factor:.9g} times torch's (residual {residual:.0e})"
    rows = tuple(range(1, ours.ndim))
    for side, array, name, other in (("jax", ours, "torch", theirs), ("torch", theirs, "jax", ours)):
        empty = np.asarray(~array.any(rows) & other.any(rows))
        if empty.any() and distance(ours[~empty], theirs[~empty]) <= EXPLAINED:
            says = f"{side}'s gradient is 0 in {part_of(empty, 'rows') or 'all rows'}, where {name}'s is not"
            return f"{says}: as torch's padding_idx has it" if side == "torch" and empty.sum() == 1 and ours.ndim == 2 else says
    return ""
