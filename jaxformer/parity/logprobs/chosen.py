"""Causes where one side gives log-probabilities of the ids alone: one number a place, which has to fit at all of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from jaxformer.parity.logprobs.distributions import FACTOR, UNITS, log_softmax
from jaxformer.parity.logprobs.evidence import HALVES, MARGIN, Evidence, Fit, Transform, cause, halved
from jaxformer.parity.logprobs.numbers import least, n_digits, rounded
from jaxformer.parity.logprobs.pointwise import rounding, temperature
from jaxformer.parity.logprobs.report import LogprobCause
from jaxformer.parity.logprobs.truncation import truncations

BASES = {2: np.log(2.0), 10: np.log(10.0)}
LEAST, LEAST_OF_TWO = 4, 8
"""Number of places from which one solved number, and two, are believed."""
FEW = 3, 12
"""Smallest and largest number of places that have to fit before all are tried: fewer of large vocabularies."""
SMALL = 2**16
"""Number of logits of these places."""
TEMPERATURES = [1.0, *sorted((round(n / 100, 2) for n in range(5, 301) if n != 100), key=lambda t: (n_digits(t), abs(t - 1)))]
"""Temperatures that are tried with a truncation."""
Causes = tuple[LogprobCause, ...]


def log_base(base: int) -> LogprobCause:
    """Cause: logarithms of another base."""
    return cause("log base", f"the {{sampler}} gives logarithms to base {base}", base=base)


@dataclass(frozen=True)
class Scored:
    """Logits `N V`, the ids that follow, and the other side's numbers for them."""

    logits: np.ndarray
    tokens: np.ndarray
    values: np.ndarray
    precision: str

    def of(self, table: np.ndarray) -> np.ndarray:
        """Values of the tokens."""
        return np.take_along_axis(table, self.tokens[:, None], -1)[:, 0]

    @property
    def tolerance(self) -> np.ndarray:
        """Tolerance at each place."""
        largest = np.abs(np.where(np.isfinite(self.logits), self.logits, 0.0)).max(-1)
        return FACTOR * UNITS[self.precision] * np.maximum(np.maximum(largest, np.abs(self.values)), 1.0)

    def off(self, found: np.ndarray) -> float:
        """Largest difference of numbers from the other side's, in tolerances."""
        with np.errstate(invalid="ignore"):
            worst = float((np.abs(found - self.values) / self.tolerance).max())
        return worst if worst == worst else np.inf

    def fits(self, found: np.ndarray) -> bool:
        """True if numbers are the other side's, and the log-probabilities are not already nearly so."""
        off = self.off(found)
        return off <= 1 and off * MARGIN <= self.off(self.of(log_softmax(self.logits)))

    def few(self) -> "Scored":
        """Return a few places at equal distances."""
        most = int(np.clip(SMALL // self.logits.shape[1], *FEW))
        places = np.unique(np.linspace(0, len(self.values) - 1, most).astype(int))
        return Scored(self.logits[places], self.tokens[places], self.values[places], self.precision)


def explain_chosen(
    base: np.ndarray,
    at: tuple[np.ndarray, np.ndarray],
    ids: np.ndarray,
    values: np.ndarray,
    precision: str,
    *,
    plainest: bool = False,
) -> list[Causes]:
    """Return the shortest causes that give the numbers `B L-1` from logits `N V` at these rows and places; [()] for the same.

    The `plainest` are those without a number that is solved.
    """
    rows, places = at
    found: list[Causes] = []
    for by in (0, -1, 1):
        inside = places + 1 + by < ids.shape[1]
        tokens = ids[rows[inside], (places + 1 + by)[inside]]
        scored = Scored(base[inside], tokens, values[rows, places][inside], precision)
        if not inside.any() or (tokens >= base.shape[1]).any():
            continue
        if by == 0 and scored.off(scored.of(log_softmax(base))) <= 1:
            return [()]
        before: Causes = ()
        if by:
            which = "before the one" if by < 0 else "after the one"
            before = (cause("scored id", f"the {{sampler}} scores the id {which} that follows", by=by),)
            if scored.off(scored.of(log_softmax(scored.logits))) <= 1:
                found.append(before)
        found += [(*before, *each) for each in _without_numbers(scored)]
        if not by and not found and not plainest:
            found += _with_numbers(scored)
    shortest = min(map(len, found), default=0)
    return [each for each in found if len(each) == shortest]


def _forms(scored: Scored) -> Iterator[tuple[Causes, Scored]]:
    """Yield the other side's numbers as natural logarithms of probabilities."""
    yield (), scored
    for base, factor in BASES.items():
        yield (log_base(base),), replace(scored, values=scored.values * factor)
    yield (cause("sign", "the {sampler} gives negative log-probabilities"),), replace(scored, values=-scored.values)
    if ((scored.values > 0) & (scored.values <= 1)).all():
        known = cause("probability", "the {sampler} gives probabilities, not their logarithms")
        yield (known,), replace(scored, values=np.log(scored.values))


def _without_numbers(scored: Scored) -> Iterator[Causes]:
    """Yield causes without a number that is solved."""
    log_probabilities = log_softmax(scored.logits)
    for after, form in _forms(scored):
        if after and form.off(form.of(log_probabilities)) <= 1:
            yield after
        for name in HALVES:
            if form.fits(form.of(log_softmax(halved(scored.logits, name)))):
                yield rounding(name, "logits").cause, *after
            if form.fits(halved(form.of(log_probabilities), name)):
                yield rounding(name, "log-probabilities").cause, *after
    if scored.fits(scored.of(scored.logits)):
        yield (cause("logits", "the {sampler} gives logits without a log-softmax"),)


def _with_numbers(scored: Scored) -> list[Causes]:
    found = [] if len(scored.values) < LEAST else [*_temperature(scored)]
    return found or ([] if len(scored.values) < LEAST_OF_TWO else _truncated(scored))


def _temperature(scored: Scored) -> Iterator[Causes]:
    """Yield a temperature, alone or with another form of the numbers, or of logits without a log-softmax."""
    raw = scored.of(scored.logits)
    with np.errstate(divide="ignore", invalid="ignore"):
        for value in rounded(float(np.median(raw / scored.values))):
            if value > 0 and scored.fits(raw / value):
                yield temperature(value).cause, cause("logits", "the {sampler} gives logits without a log-softmax")
                break
    for after, form in _forms(scored):
        few = form.few()
        solved = least(lambda t, few=few: few.off(few.of(log_softmax(few.logits / t))), 0.05, 20.0)
        for value in rounded(solved):
            if form.fits(form.of(log_softmax(form.logits / value))):
                yield temperature(value).cause, *after
                break
        for half in HALVES:
            for value in [*rounded(solved)][:4]:
                if form.fits(form.of(log_softmax(halved(form.logits / value, half)))):
                    yield temperature(value).cause, rounding(half, "logits").cause, *after
                    break


def _truncated(scored: Scored) -> list[Causes]:
    """Return truncations, alone or with a temperature: what is left was normalised, which tells how much it is."""
    few = scored.few()
    for value in TEMPERATURES:
        if _kept_ids(replace(few, logits=few.logits / value)) is None:
            continue
        ranks = _kept_ids(replace(scored, logits=scored.logits / value))
        if ranks is None:
            continue
        kept, clear = ranks
        if clear.sum() < LEAST_OF_TWO:
            continue
        steps = (temperature(value),) if value != 1 else ()
        if found := _named(scored.logits[clear], value, kept[clear], steps, scored.precision):
            return found
    return []


def _kept_ids(scored: Scored) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the likeliest ids `N V` whose mass is what the other side divided by, and the places where only one number of ids
    has that mass; None if a place has none."""
    log_probabilities = log_softmax(scored.logits)
    ranks = np.argsort(np.argsort(-log_probabilities, -1, kind="stable"), -1)
    with np.errstate(divide="ignore"):
        mass = np.log(np.cumsum(np.exp(-np.sort(-log_probabilities, -1)), -1))
    wanted = scored.of(log_probabilities) - scored.values
    fits = np.abs(mass - wanted[:, None]) <= scored.tolerance[:, None]
    fits &= np.arange(fits.shape[1]) >= scored.of(ranks)[:, None]
    if not fits.any(-1).all():
        return None
    return ranks <= fits.argmax(-1)[:, None], fits.sum(-1) == 1


def _named(logits: np.ndarray, value: float, kept: np.ndarray, steps: tuple[Transform, ...], precision: str) -> list[Causes]:
    """Return the truncations that leave these ids."""
    stages = (logits, logits / value) if steps else (logits,)
    target = np.where(kept, log_softmax(stages[-1], kept), -np.inf)
    places = np.arange(len(logits))
    evidence = Evidence(logits, target, kept, precision, np.zeros((len(logits), 1), int), places, places, 1)
    return truncations(Fit(steps, stages), evidence, np.isfinite(logits))
