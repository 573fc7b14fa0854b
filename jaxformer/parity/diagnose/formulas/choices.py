"""Formulas with choices: a layer norm has some epsilon, a bias or none, and so on.

A cause is named only if one combination of choices gives torch's array to 1e-12 in float64, and another combination gives
jax's. The cause is the choices in which they differ.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxformer.parity.diagnose.diagnosis import Candidate, plain
from jaxformer.parity.diagnose.evidence import Difference, Evidence
from jaxformer.parity.diagnose.formulas.words import said
from jaxformer.parity.diagnose.mutation import Change
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

ALL = slice(None)
FAR, NEAR = 3, 2
"""Number of choices in which torch may differ from the usual combination, and jax from torch."""

Choices = dict[str, dict[str, Any]]
"""Choices: names such as 'epsilon' -> options by name; the usual option comes first."""
Chosen = Mapping[str, str]
"""Combination: name of each choice -> name of its option."""
Found = tuple[Chosen, float]
"""Combination, and its residual (relL2)."""
Formula = Callable[..., np.ndarray]
"""Formula, called with the chosen options by the names of the choices."""
Grounds = Sequence[tuple[Choices, slice]]
"""Choices for some rows of an array, and these rows; all rows come last. One row nearly always refutes a wrong combination."""


@dataclass(frozen=True)
class Hypothesis:
    """Formula that a module may have computed."""

    name: str
    choices: Callable[[Evidence], Choices]
    """Function that lists the choices; empty if the formula does not apply."""
    formula: Formula


def search_both(
    formula: Formula,
    grounds: Grounds,
    arrays: tuple[np.ndarray, np.ndarray],
    most: tuple[int, int],
    hints: tuple[Chosen, Chosen] = ({}, {}),
) -> tuple[Found, Found] | None:
    """Find the combination that gives torch's array, and the one nearest to it that gives jax's; None unless both are found.

    `arrays`, `most` (number of choices that may differ) and `hints` (combinations to start from) are torch's, then jax's.
    """
    usual = {what: next(iter(options)) for what, options in grounds[-1][0].items()}
    if not (torch_found := search(formula, grounds, hints[0] or usual, arrays[0], most[0])):
        return None
    starts = filter(None, (hints[1], torch_found[0]))
    jax_found = next((found for start in starts if (found := search(formula, grounds, start, arrays[1], most[1]))), None)
    return (torch_found, jax_found) if jax_found else None


def search(formula: Formula, grounds: Grounds, start: Chosen, wanted: np.ndarray, most: int) -> Found | None:
    """Return the combination nearest to `start` that gives the array, and its residual; None if there is none."""
    return next(fitting(formula, grounds, start, wanted, most), None)


def fitting(formula: Formula, grounds: Grounds, start: Chosen, wanted: np.ndarray, most: int) -> Iterator[Found]:
    """Yield the combinations that give the array, those near to `start` first, with their residuals."""
    for chosen in near(grounds[-1][0], start, most):
        residuals = (residual_of(formula, choices, chosen, wanted[rows]) for choices, rows in grounds)
        if all((residual := found) <= EXPLAINED for found in residuals):
            yield chosen, residual


def residual_of(formula: Formula, choices: Choices, chosen: Chosen, wanted: np.ndarray) -> float:
    """Return the residual (relL2) of a combination; infinite if the sizes do not fit."""
    with np.errstate(all="ignore"):
        try:
            return distance(formula(**{what: choices[what][name] for what, name in chosen.items()}), wanted)
        except (ArithmeticError, ValueError):
            return math.inf


def near(choices: Choices, start: Chosen, most: int) -> Iterator[dict[str, str]]:
    """Yield every combination that differs from `start` in at most `most` choices, those with few differences first."""
    for count in range(min(most, len(choices)) + 1):
        for changed in itertools.combinations(choices, count):
            others = ([name for name in choices[what] if name != start[what]] for what in changed)
            for names in itertools.product(*others):
                yield {**start, **dict(zip(changed, names, strict=True))}


def differing_choices(choices: Choices, torch: Found, jax: Found) -> dict[str, tuple[str, str]]:
    """Return the choices in which both sides differ, each with torch's and jax's option."""
    return {what: (torch[0][what], jax[0][what]) for what in choices if torch[0][what] != jax[0][what]}


CHOSEN = Change("formula.choices", lambda args: said(args, 1), lambda args: said(args, 0))


def explain_by(hypothesis: Hypothesis, difference: Difference) -> Candidate | None:
    """Explain a difference by one formula: 'torch epsilon 1e-05; jax epsilon 1e-06 (residual 7e-16)'.

    None unless the formula gives the arrays of both sides.
    """
    whole = difference.made
    real = {name: array for name, array in whole.before.items() if array.ndim and array.size and not np.iscomplexobj(array)}
    whole = replace(whole, before=real)
    if not difference.torch.ndim or not (choices := hypothesis.choices(whole)):
        return None
    row = fullest(difference.torch)
    of_row = hypothesis.choices(only(row, whole, len(difference.torch)))
    same = [{what: [*options] for what, options in each.items()} for each in (of_row, choices)]
    grounds = [(of_row, row)] * (same[0] == same[1]) + [(choices, ALL)]
    torch_hint, jax_hint = (offered(hint, choices) for hint in difference.session.chosen.get(hypothesis, ({}, {})))
    arrays = difference.torch, difference.jax
    found = search_both(hypothesis.formula, grounds, arrays, (FAR, NEAR), (torch_hint, jax_hint))
    if not found or not (differing := differing_choices(choices, *found)):
        return None
    difference.session.chosen[hypothesis] = found[0][0], found[1][0]
    return plain(CHOSEN, max(found[0][1], found[1][1]), formula=hypothesis.name, **differing)


def offered(hint: Chosen, choices: Choices) -> Chosen:
    """Return a hint if its options exist here too; else an empty one."""
    fits = hint.keys() == choices.keys() and all(name in choices[what] for what, name in hint.items())
    return hint if fits else {}


def fullest(array: np.ndarray) -> slice:
    """Return the row of a batch with the largest norm, as a slice."""
    size = np.square(np.where(np.isfinite(array), array, 0)).reshape(len(array), -1).sum(1)
    return slice(best := int(size.argmax()), best + 1)


def only(row: slice, evidence: Evidence, rows: int) -> Evidence:
    """Cut evidence to one row of the batch; arrays without rows stay whole."""

    def cut(array: np.ndarray) -> np.ndarray:
        return array[row] if array.shape[:1] == (rows,) else array

    before, ids = ({name: cut(array) for name, array in each.items()} for each in (evidence.before, evidence.ids))
    masks, scores = (tuple(map(cut, arrays)) for arrays in (evidence.masks, evidence.scores))
    return replace(evidence, before=before, ids=ids, masks=masks, scores=scores)
