"""Transformations of logits (temperature, cap, rounding, penalties of ids that were read, a bias), and two or three of them in
turn. Numbers are solved from the distributions, and rounded to the fewest digits that still fit."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from jaxformer.parity.logprobs.distributions import FACTOR, UNITS, log_softmax
from jaxformer.parity.logprobs.evidence import HALVES, Evidence, Fit, Transform, cause, halved, tried
from jaxformer.parity.logprobs.numbers import least, n_decimals, n_digits, plain, rounded, simplest
from jaxformer.parity.logprobs.report import LogprobCause, SideName
from jaxformer.parity.logprobs.sparse import changed_ids

LEAST_FREE = 6
"""Number of differences between ids of a place, over all places, from which a solved number says something."""
UNCHANGED = 1e-5
"""Distance of a temperature from 1 from which it counts as one."""
HIDDEN = 2.0**12
"""Tolerances within which the rounding to 16 bits may hide a number."""
SOLVED = 2**13
"""Number of logits on which a cap is solved."""
DECIMALS = 3
"""Number of decimals up to which somebody sets a temperature."""
WIDEST_CAP = 30.0
"""Ratio of a cap to the largest logit up to which it can be told from no cap."""


def pointwise(evidence: Evidence, *, plainest: bool = False) -> list[Fit]:
    """Return the shortest chains of transformations that give the target's distribution among the kept ids; of the `plainest`,
    a rounding and a temperature, alone.
    """
    if same := tried(evidence, ()):
        return [same]
    if (evidence.kept.sum(-1) - 1).sum() < LEAST_FREE:
        return []
    small = evidence.small()
    found: dict[int, list[Fit]] = {}
    for chain in _plainest(small) if plainest else _proposals(small):
        shortest = min(found, default=len(chain))
        names = [each.cause.name for each in chain]
        known = names in [[each.cause.name for each in fit.transforms] for fit in found.get(len(chain), [])]
        if len(chain) <= shortest and not known and tried(small, chain) and (fit := tried(evidence, chain)):
            found.setdefault(len(chain), []).append(fit)
    return found[min(found)] if found else []


def _plainest(small: Evidence) -> Iterator[tuple[Transform, ...]]:
    """Yield single roundings of the logits, and the temperature."""
    yield from ((rounding(name, "logits"),) for name in HALVES)
    slope = small.slopes(small.base)
    if small.near(small.base * slope):
        yield from ((temperature(value),) for value in _temperatures(slope))


def _proposals(small: Evidence) -> Iterator[tuple[Transform, ...]]:
    """Yield chains with their numbers solved on the evidence."""
    yield from _plainest(small)
    yield from ((rounding(name, "log-probabilities"),) for name in HALVES)
    yield from solved(small)
    for name in HALVES:
        half = rounding(name, "logits")
        yield from ((half, *rest) for rest in solved(replace(small, base=half.apply(small, small.base))))
    for before, name in itertools.product([*_before_rounding(small)], HALVES):
        yield before, rounding(name, "logits")
        yield before, rounding(name, "log-probabilities")
    yield from ((rounding(one, "logits"), rounding(other, "logits")) for one, other in itertools.permutations(HALVES))


def solved(base: Evidence) -> Iterator[tuple[Transform, ...]]:
    """Yield chains of solved transformations without rounding."""
    slope = base.slopes(base.base)
    if base.near(base.base * slope):
        yield from ((temperature(value),) for value in _temperatures(slope))
    cap = _best_cap(base, scaled=False)
    if base.near(_capped(base.base, cap)):
        yield from ((capping(value),) for value in rounded(cap))
    yield from changed_ids(base, temperature)
    cap = _best_cap(base, scaled=True)
    slope = base.slopes(_capped(base.base, cap))
    if base.near(_capped(base.base, cap) * slope):
        for value in rounded(cap):
            scale = base.slopes(_capped(base.base, value))
            yield from ((capping(value), temperature(each)) for each in _temperatures(scale))
        for value in _temperatures(slope):
            yield from ((temperature(value), capping(each)) for each in rounded(cap / value))


def _capped(logits: np.ndarray, cap: float) -> np.ndarray:
    return cap * np.tanh(logits / cap)


def _temperatures(slope: float) -> Iterator[float]:
    """Yield temperatures for a factor of the logits: those for which one of the two has few digits, then the exact one."""
    if not (np.isfinite(slope) and slope > 0):
        return
    pairs = [*rounded(1 / slope), *(1 / each for each in rounded(slope) if each)]
    digits = [min(n_digits(each), n_digits(1 / each)) for each in pairs if each]
    order = np.argsort(digits, kind="stable")
    yield from (pairs[n] for n in order if abs(pairs[n] - 1) > UNCHANGED)


def temperature(value: float) -> Transform:
    """Division of the logits by a temperature."""
    return Transform(_divided("sampler", "", value), lambda _, logits: logits / value)


def of_either_side(causes: tuple[LogprobCause, ...], precision: str) -> list[tuple[LogprobCause, ...]]:
    """Return causes that begin with a temperature for each side that may have it: one side's division by T is the other's by
    1 / T. A number of many digits is left out, if the other side's has few.
    """
    if not causes or causes[0].name != "temperature":
        return [causes]
    value, rounding_error = causes[0].args["temperature"], FACTOR * UNITS[precision]
    own, others = (simplest(each * (1 - rounding_error), each * (1 + rounding_error)) for each in (value, 1 / value))
    most = 1 + min(n_digits(own), n_digits(others))
    readings = [(own, _divided("sampler", "", own)), (others, _divided("trainer", ", the {sampler} does not", others))]
    likely = [known for number, known in readings if n_decimals(number) <= DECIMALS or n_digits(number) <= most]
    return [(known, *causes[1:]) for known in likely]


def _divided(side: SideName, beside: str, value: float) -> LogprobCause:
    said = f"the {{{side}}} divides its logits by temperature {plain(value):g}{beside}"
    return cause("temperature", said, side, temperature=plain(value))


def capping(value: float) -> Transform:
    """Soft cap of the logits: cap * tanh(logits / cap) (Gemma 2)."""
    known = cause("cap", f"the {{sampler}} caps its logits at {plain(value):g} by tanh", cap=plain(value))
    return Transform(known, lambda _, logits: _capped(logits, value))


def rounding(name: str, what: str) -> Transform:
    """Rounding of the logits or of the log-probabilities to 16 bits."""
    known = cause("rounding", f"the {{sampler}} rounds its {what} to {name}", dtype=name, of=what)
    if what == "logits":
        return Transform(known, lambda _, logits: halved(logits, name), name)
    return Transform(known, lambda _, logits: halved(log_softmax(logits), name), name)


def _best_cap(base: Evidence, *, scaled: bool) -> float:
    """Cap with the least squared error, times any factor if `scaled`; NaN if none is better than no cap."""
    few = np.s_[:, :: max(1, base.kept.size // SOLVED)]
    kept, logits = base.kept[few], base.base[few]
    largest = float(np.abs(logits[kept]).max(initial=0.0))
    if not largest:
        return np.nan
    weight = kept / np.maximum(kept.sum(-1, keepdims=True), 1)
    target = _centered(base.target[few], kept, weight)

    def error(cap: float) -> float:
        values = _centered(_capped(logits, cap), kept, weight)
        size = float((values * values).sum())
        factor = float((values * target).sum()) / size if scaled and size else 1.0
        return float(np.square(factor * values - target).sum())

    return least(error, largest / WIDEST_CAP, largest * WIDEST_CAP)


def _centered(values: np.ndarray, kept: np.ndarray, weight: np.ndarray) -> np.ndarray:
    values = np.where(kept, values, 0.0)
    return np.where(kept, values - (values * weight).sum(-1, keepdims=True), 0.0)


def _before_rounding(small: Evidence) -> Iterator[Transform]:
    """Yield a temperature or a cap before a rounding, whose number the rounding hides: those with few digits."""
    weight = small.kept / np.maximum(small.kept.sum(-1, keepdims=True), 1)
    base, target = (_centered(each, small.kept, weight) for each in (small.base, small.target))
    size = float((base * base).sum())
    slope = float((base * target).sum()) / size if size else 0.0
    if slope > 0 and small.near(small.base * slope, HIDDEN):
        yield from (temperature(value) for value in _temperatures(slope) if min(n_digits(value), n_digits(1 / value)) < 5)
    cap = _best_cap(small, scaled=False)
    if small.near(_capped(small.base, cap), HIDDEN):
        yield from (capping(value) for value in rounded(cap) if n_digits(value) < 5)
