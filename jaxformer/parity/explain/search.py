"""Formulas with choices, and the search for those choices that give an array.

A layer norm has an epsilon, a bias or none, and so on. A cause is named only where one combination of choices gives torch's
array to 1e-12, and another one jax's, in float64; it says in which choices they differ.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxformer.parity.explain.evidence import Evidence
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


def apart(choices: Choices, torch: Found, jax: Found) -> str:
    """'torch epsilon 1e-05; jax epsilon 1e-06 (residual 7e-16)'; '' where both sides chose alike."""
    differing = [what for what in choices if torch[0][what] != jax[0][what]]
    sides = [", ".join(f"{what} {chose[what]}" for what in differing) for chose, _ in (torch, jax)]
    return f"torch {sides[0]}; jax {sides[1]} (residual {max(torch[1], jax[1]):.0e})" if differing else ""
