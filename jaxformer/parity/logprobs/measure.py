"""Figures of a comparison: which places differ, divergences, and importance ratios of the ids that follow."""

from typing import Any, NamedTuple

import numpy as np

from jaxformer.parity.logprobs.distributions import UNITS, apart, log_softmax, tolerances
from jaxformer.parity.logprobs.sides import Side


class Measured(NamedTuple):
    """Figures of all places `B L`; NaN where nothing is judged."""

    differs: np.ndarray
    tolerance: np.ndarray
    forward: np.ndarray
    """KL(trainer || sampler)."""
    backward: np.ndarray
    """KL(sampler || trainer)."""
    log_ratio: np.ndarray
    """log p_trainer - log p_sampler of the id that follows; NaN at the last place."""

    def figures(self) -> dict[str, Any]:
        """Fields of a report."""
        at = np.argwhere(self.differs)
        first = at[np.lexsort((at[:, 0], at[:, 1]))[0]].tolist() if len(at) else None
        found: dict[str, Any] = {"n_different": len(at), "first": first, "tolerance": _largest(self.tolerance)}
        for name, values in (("kl", self.forward), ("kl_backward", self.backward)):
            told = not np.isnan(values).all()
            found |= {name: values.tolist() if told else None, f"{name}_mean": _mean(values), f"{name}_max": _largest(values)}
        gaps = self.log_ratio[~np.isnan(self.log_ratio)]
        with np.errstate(over="ignore", invalid="ignore"):
            ratios = np.exp(gaps)
            squares = float(np.square(ratios).sum())
            size = float(ratios.sum()) ** 2 / squares / len(ratios) if squares else np.nan
        figures = {"difference_mean": _mean(np.abs(gaps)), "difference_max": _largest(np.abs(gaps))}
        figures |= {"ratio_mean": _mean(ratios), "ratio_min": -_largest(-ratios), "ratio_max": _largest(ratios)}
        return found | figures | {"effective_sample_size": size}


def _mean(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else np.nan


def _largest(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(values.max()) if values.size else np.nan


def measure(trainer: Side, sampler: Side, ids: np.ndarray, judged: np.ndarray, precision: str) -> Measured:
    """Compare both sides at the places `B L` that are judged, row by row."""
    tolerance, forward, backward, log_ratio = np.full((4, *ids.shape), np.nan)
    found = Measured(np.zeros(ids.shape, bool), tolerance, forward, backward, log_ratio)
    for row in range(len(ids)):
        _measure_row(found, (trainer, sampler), ids, row, np.flatnonzero(judged[row]), UNITS[precision])
    return found


def _measure_row(found: Measured, sides: tuple[Side, Side], ids: np.ndarray, row: int, at: np.ndarray, unit: float) -> None:
    tables = [None if side.logits is None else side.logits[row, at].astype(np.float64) for side in sides]
    logits = [values for values in tables if values is not None]
    if not at.size:
        return
    next_at = at[at < ids.shape[1] - 1]
    log_probabilities, chosen = [], []
    for side, values in zip(sides, tables, strict=True):
        if values is None:
            assert side.chosen is not None
            chosen.append(side.chosen[row, next_at])
        else:
            log_probabilities.append(log_softmax(values))
            chosen.append(log_probabilities[-1][np.arange(len(next_at)), ids[row, next_at + 1]])
    with np.errstate(invalid="ignore"):
        same = (chosen[0] == chosen[1]) | (np.isnan(chosen[0]) & np.isnan(chosen[1]))
        gap = np.where(same, 0.0, chosen[0] - chosen[1])
    found.log_ratio[row, next_at] = gap
    sizes = [np.abs(np.where(np.isfinite(each), each, 0.0))[:, None] for each in chosen]
    wide = np.full(len(at), 0.0)
    wide[: len(next_at)] = tolerances(unit, *sizes)
    found.tolerance[row, at] = np.maximum(wide, tolerances(unit, *logits)) if logits else wide
    if len(logits) < 2:
        found.differs[row, next_at] = ~(np.abs(gap) <= found.tolerance[row, next_at])
        return
    most = max(each.shape[-1] for each in log_probabilities)
    one, other = (np.pad(each, ((0, 0), (0, most - each.shape[-1])), constant_values=-np.inf) for each in log_probabilities)
    here = apart(one, other, found.tolerance[row, at])
    found.differs[row, at] = here.differs
    found.forward[row, at], found.backward[row, at] = np.maximum(here.forward, 0.0), np.maximum(here.backward, 0.0)
