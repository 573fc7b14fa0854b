"""Solve for one setting of jax's optimizer that is no usual number: decay rates, epsilon, the norm at which gradients are
clipped."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from jaxformer.parity.diagnose.formulas.optimizer_course import CLIPS, Course, Settings
from jaxformer.parity.diagnose.formulas.optimizer_steps import SOME, step, step_choices
from jaxformer.parity.diagnose.formulas.words import said
from jaxformer.parity.diagnose.solve import MUCH_SHORTER, Numbers, gauss_newton
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

STEPS = 25
"""Largest number of Gauss-Newton steps."""
DIGITS = range(1, 8)
"""Numbers of digits that a person writes."""
RATES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999)
EPSILONS = tuple(10.0**-n for n in range(1, 15))


@dataclass(frozen=True)
class Unknown:
    """Setting of one or two numbers."""

    name: str
    """Name of the choice, for its words."""
    starts: Sequence[Numbers]
    """Numbers to start from, torch's first."""
    chosen: Callable[[Numbers], dict[str, Any]]
    """Function from numbers to arguments of `step`."""
    decays: bool = False
    """True for decay rates, of which 1 - rate is solved for."""

    def says(self, numbers: Numbers) -> str:
        """Name the option with these numbers."""
        return "nothing" if math.inf in numbers else " and ".join(f"{each:g}" for each in numbers)


def explain_number(settings: Settings, course: Course, moves: tuple[np.ndarray, np.ndarray]) -> str:
    """Return 'torch betas 0.9 and 0.999; jax betas 0.87 and 0.99 (residual 3e-16)', or '' if no such setting gives jax's moves.

    `moves` are torch's and jax's updates at the last step, divided by the learning rates.
    """
    torch, jax = moves
    if not jax.any():  # a learning rate of 0, not gradients clipped to 0
        return ""
    few = slice(None, None, max(1, len(course.rates) // SOME))
    usual: dict[str, Any] = {what: next(iter(options.values())) for what, options in step_choices(settings, course).items()}
    if distance(step(**usual), torch) > EXPLAINED or distance(step(**usual), jax) <= EXPLAINED:
        return ""
    for unknown in unknowns(settings, course):

        def run(numbers: Numbers, entries: slice = slice(None), unknown: Unknown = unknown) -> np.ndarray:
            given: dict[str, Any] = {**usual, "course": course.at(entries), **unknown.chosen(numbers)}
            return step(**given)

        found = solved(unknown, lambda numbers, run=run: run(numbers, few), jax[few])
        for numbers in rounded(found) if not unknown.decays or min(found) >= 0 else ():
            if (residual := distance(run(numbers), jax)) <= EXPLAINED:
                choices = {unknown.name: (unknown.says(unknown.starts[0]), unknown.says(numbers))}
                return f"torch {said(choices, 0)}; jax {said(choices, 1)} (residual {residual:.0e})"
    return ""


def unknowns(settings: Settings, course: Course) -> Iterator[Unknown]:
    """Yield the settings of an optimizer that may be other numbers."""
    if settings.kind == "Adam":
        pairs = [settings.betas, *((a, b) for a in RATES for b in RATES[1:])]
        yield Unknown("betas", pairs, lambda numbers: {"betas": numbers}, decays=True)
    if settings.kind == "RMSprop":
        rates = [(settings.betas[1],), *((rate,) for rate in RATES)]
        yield Unknown("decay of squares", rates, lambda numbers: {"decay of squares": (0.0, *numbers)}, decays=True)
    if settings.kind != "Adam":
        rates = [(settings.share,), *((rate,) for rate in RATES)]
        yield Unknown("share of the last move", rates, lambda numbers: {"share of the last move": numbers[0]}, decays=True)
    torchs = math.inf if settings.clip_norm is None else settings.clip_norm
    given = [each.norm for each in course.gradients]
    norms = [(torchs,), *((part * norm,) for norm in {min(given), max(given)} for part in (0.9, 0.5, 0.1))]
    for how in ("norm + 1e-6", "norm"):

        def clipped(numbers: Numbers, how: str = how) -> dict[str, Any]:
            return {"settings": replace(settings, clip_norm=numbers[0]), "gradients clipped by": CLIPS[how]}

        yield Unknown("norm of gradients", norms, clipped)
    if settings.kind != "SGD":
        epsilons = [(settings.epsilon,), *((epsilon,) for epsilon in EPSILONS)]
        yield Unknown("epsilon", epsilons, lambda numbers: {"epsilon": numbers[0]})


def solved(unknown: Unknown, run: Callable[[Numbers], np.ndarray], wanted: np.ndarray) -> Numbers:
    """Return the numbers nearest to `wanted`, of which the logarithms are solved for."""

    def numbers_of(logarithms: Sequence[float]) -> Numbers:
        return tuple(float(1 - np.exp(x) if unknown.decays else np.exp(x)) for x in logarithms)

    @cache
    def array(*logarithms: float) -> np.ndarray:
        try:
            return run(numbers_of(logarithms))
        except OverflowError:  # powers of a decay rate that is no rate
            return np.full_like(wanted, np.inf)

    some = (np.array(each) for each in unknown.starts if all(0 <= number < math.inf for number in each))
    starts = [np.log(1 - each if unknown.decays else each) for each in some]
    with np.errstate(all="ignore"):
        start = min((each.tolist() for each in starts), key=lambda each: distance(array(*each), wanted))
        return numbers_of(gauss_newton(array, start, wanted, STEPS, STEPS, MUCH_SHORTER))


def rounded(numbers: Numbers) -> Iterator[Numbers]:
    """Yield the numbers with few digits first."""
    for digits in DIGITS:
        yield tuple(float(f"{each:.{digits}g}") if abs(each) > EXPLAINED else 0.0 for each in numbers)
