"""Transformations of few logits: penalties of ids that were read before, and a bias of some ids."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from jaxformer.parity.logprobs.evidence import Evidence, Transform, cause
from jaxformer.parity.logprobs.numbers import plain, rounded

LEAST_PLACES = 3
"""Number of places from which a bias can be told from other differences."""
NEGLIGIBLE = 1e-4
"""Share of one penalty below which the other is none."""
LISTED = 8
"""Number of biased ids that the words list."""
PRECISIONS = (1, 2, 3, 4, 6, 17)
"""Numbers of digits to which several numbers are rounded together."""
MOST_BIASED = 0.5
"""Largest share of ids with a bias."""


def changed_ids(base: Evidence, temperature: Callable[[float], Transform]) -> Iterator[tuple[Transform, ...]]:
    """Yield penalties and biases, alone and before a temperature, with their numbers solved."""
    readings = [("all ids so far", base.counts)]
    if base.prompt > 1:
        readings.append(("the ids after the prompt", base.counts_of_output))
    for which, counts in readings:
        for factor, scaled in _scales(base, base.kept & (counts == 0), temperature):
            for candidates in _penalties(base, counts, which, factor):
                yield from _worth_trying(base, candidates, scaled)
    for factor, scaled in _scales(base, base.kept, temperature):
        yield from _worth_trying(base, _biases(base, factor), scaled)


def _worth_trying(
    base: Evidence, candidates: list[Transform], scaled: tuple[Transform, ...]
) -> Iterator[tuple[Transform, ...]]:
    """Yield candidates whose numbers are rounded ever less, if the last one, with the numbers as solved, is near the target."""
    if candidates:
        logits = candidates[-1].apply(base, base.base)
        for each in scaled:
            logits = each.apply(base, logits)
        if base.near(logits):
            yield from ((each, *scaled) for each in candidates)


def _scales(
    base: Evidence, free: np.ndarray, temperature: Callable[[float], Transform]
) -> Iterator[tuple[float, tuple[Transform, ...]]]:
    """Yield the temperature 1, and the one that ids without a change have."""
    yield 1.0, ()
    slope = base.slopes(base.base, free)
    if np.isfinite(slope) and slope > 0 and abs(slope - 1) > 1e-5:
        for value in [*rounded(1 / slope)][-4:]:
            yield value, (temperature(value),)


def _unscaled(base: Evidence, factor: float, free: np.ndarray) -> np.ndarray:
    """Target before the temperature, at the base's level."""
    return (base.target - base.levels(base.base / factor, free)) * factor


def _penalties(base: Evidence, counts: np.ndarray, which: str, factor: float) -> Iterator[list[Transform]]:
    """Yield a repetition penalty, and penalties that are subtracted, each with its numbers rounded ever less."""
    free = base.kept & (counts == 0)
    telling = free.any(-1, keepdims=True) & base.kept & (counts > 0)
    if not telling.any():
        return
    wanted = _unscaled(base, factor, free)[telling]
    logits, times = base.base[telling], counts[telling]
    with np.errstate(divide="ignore", invalid="ignore"):
        penalty = float(np.median(np.where(logits > 0, logits / wanted, wanted / logits)))
    of_output = which != "all ids so far"
    if penalty > 0:
        yield [_repetition(value, which, of_output) for value in rounded(penalty)]
    design = np.stack([np.ones(len(times)), times], 1).astype(np.float64)
    for columns in ([0], [1], [0, 1]):
        if np.linalg.matrix_rank(design[:, columns]) == len(columns):
            found = [0.0, 0.0]
            found[columns[0] : columns[-1] + 1] = np.linalg.lstsq(design[:, columns], logits - wanted, rcond=None)[0].tolist()
            presence, frequency = found
            if len(columns) > 1 and min(abs(presence), abs(frequency)) < NEGLIGIBLE * max(abs(presence), abs(frequency)):
                continue
            digits = [(float(f"{presence:.{n}g}"), float(f"{frequency:.{n}g}")) for n in PRECISIONS]
            yield [_additive(one, other, which, of_output) for one, other in digits]


def _seen(evidence: Evidence, of_output: bool) -> np.ndarray:
    return evidence.counts_of_output if of_output else evidence.counts


def _repetition(value: float, which: str, of_output: bool) -> Transform:
    """Penalty of ids read before: divides positive logits, multiplies negative ones (Keskar et al. 2019)."""
    said = f"the {{sampler}} applies a repetition penalty of {plain(value):g} to {which}"

    def apply(evidence: Evidence, logits: np.ndarray) -> np.ndarray:
        penalised = np.where(logits > 0, logits / value, logits * value)
        return np.where(_seen(evidence, of_output) > 0, penalised, logits)

    return Transform(cause("repetition penalty", said, penalty=plain(value), of=which), apply)


def _additive(presence: float, frequency: float, which: str, of_output: bool) -> Transform:
    parts = [("presence", presence), ("frequency", frequency)]
    said = " and ".join(f"a {name} penalty of {plain(value):g}" for name, value in parts if value)
    args = {name: plain(value) for name, value in parts if value}

    def apply(evidence: Evidence, logits: np.ndarray) -> np.ndarray:
        counts = _seen(evidence, of_output)
        return logits - presence * (counts > 0) - frequency * counts

    known = cause("presence penalty", f"the {{sampler}} subtracts {said} from {which}", **args, of=which)
    return Transform(replace(known, name="frequency penalty") if not presence else known, apply)


def _biases(base: Evidence, factor: float) -> list[Transform]:
    """Return the bias of each id that is the same number at every place."""
    if len(base.base) < LEAST_PLACES:
        return []
    gap = np.where(base.kept, _unscaled(base, factor, base.kept) - base.base, np.nan)
    often = base.kept.sum(0) > 1
    bias = np.zeros(gap.shape[1])
    bias[often] = np.nanmedian(gap[:, often], 0)
    bias[np.abs(bias) <= factor * float(base.tolerance(base.base).max())] = 0.0
    biased = np.flatnonzero(bias)
    if not 0 < len(biased) <= MOST_BIASED * often.sum():
        return []
    return [_bias({int(n): float(f"{bias[n]:.{digits}g}") for n in biased}) for digits in PRECISIONS]


def _bias(values: dict[int, float]) -> Transform:
    shown = ", ".join(f"{value:+.6g} to id {token}" for token, value in [*values.items()][:LISTED])
    more = f" and {len(values) - LISTED} more" if len(values) > LISTED else ""

    def apply(_: Evidence, logits: np.ndarray) -> np.ndarray:
        changed = logits.copy()
        changed[:, [*values]] += [*values.values()]
        return changed

    bias = {str(token): plain(value) for token, value in values.items()}
    return Transform(cause("bias", f"the {{sampler}} adds {shown}{more}", bias=bias), apply)
