"""Formulas with choices: a layer norm has an epsilon, a bias or none, and so on.

A cause is named only where one combination of choices gives torch's array to 1e-12, and another one jax's, in float64; it says
in which choices they differ.
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
"""In how many choices torch may differ from what is usual, and jax from torch."""

Choices = dict[str, dict[str, Any]]
"""What is open -> what it may be, by name; what is usual comes first."""
Chosen = Mapping[str, str]
"""What is open -> the name of what was chosen."""
Found = tuple[Chosen, float]
"""What was chosen, and how far it is off: relL2."""
Formula = Callable[..., np.ndarray]
"""Called with what was chosen: what is open -> what it is."""
Grounds = Sequence[tuple[Choices, slice]]
"""The choices for some rows of an array each, all rows coming last: one row tells nearly always that a combination is wrong."""


@dataclass(frozen=True)
class Hypothesis:
    """What a module may have computed."""

    name: str
    choices: Callable[[Evidence], Choices]
    """What may be combined; nothing if the formula does not apply."""
    formula: Formula


def search_both(
    formula: Formula,
    grounds: Grounds,
    arrays: tuple[np.ndarray, np.ndarray],
    most: tuple[int, int],
    hints: tuple[Chosen, Chosen] = ({}, {}),
) -> tuple[Found, Found] | None:
    """What gives torch's array, and the nearest to that what gives jax's; None unless both are found. Of `arrays`, `most` (in
    how many choices to differ) and `hints` (where to begin), the first is torch's, the second jax's."""
    usual = {what: next(iter(options)) for what, options in grounds[-1][0].items()}
    if not (torch_found := search(formula, grounds, hints[0] or usual, arrays[0], most[0])):
        return None
    starts = filter(None, (hints[1], torch_found[0]))
    jax_found = next((found for start in starts if (found := search(formula, grounds, start, arrays[1], most[1]))), None)
    return (torch_found, jax_found) if jax_found else None


def search(formula: Formula, grounds: Grounds, start: Chosen, wanted: np.ndarray, most: int) -> Found | None:
    """The combination nearest to a first one that gives the array, and how far it is off."""
    for chosen in near(grounds[-1][0], start, most):
        residuals = (residual_of(formula, choices, chosen, wanted[rows]) for choices, rows in grounds)
        if all((residual := found) <= EXPLAINED for found in residuals):
            return chosen, residual
    return None


def residual_of(formula: Formula, choices: Choices, chosen: Chosen, wanted: np.ndarray) -> float:
    """relL2; infinite where sizes do not go together."""
    with np.errstate(all="ignore"):
        try:
            return distance(formula(**{what: choices[what][name] for what, name in chosen.items()}), wanted)
        except (ArithmeticError, ValueError):
            return math.inf


def near(choices: Choices, start: Chosen, most: int) -> Iterator[dict[str, str]]:
    """Every combination with at most so many others than the first choices, those with few of them first."""
    for count in range(min(most, len(choices)) + 1):
        for changed in itertools.combinations(choices, count):
            others = ([name for name in choices[what] if name != start[what]] for what in changed)
            for names in itertools.product(*others):
                yield {**start, **dict(zip(changed, names, strict=True))}


def differing_choices(choices: Choices, torch: Found, jax: Found) -> dict[str, tuple[str, str]]:
    """What is open -> what torch chose, and what jax did, where they differ."""
    return {what: (torch[0][what], jax[0][what]) for what in choices if torch[0][what] != jax[0][what]}


CHOSEN = Change("formula.choices", lambda args: said(args, 1), lambda args: said(args, 0))


def explain_by(hypothesis: Hypothesis, difference: Difference) -> Candidate | None:
    """'torch epsilon 1e-05; jax epsilon 1e-06 (residual 7e-16)', if the formula gives both sides."""
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

    before, ids = ({name: cut(array) for name, array in each.items()} for each in (evidence.before, evidence.ids))
    masks, scores = (tuple(map(cut, arrays)) for arrays in (evidence.masks, evidence.scores))
    return replace(evidence, before=before, ids=ids, masks=masks, scores=scores)
