"""Evidence of a search: both sides' logits at the same places, and the test whether transformed logits are the other side's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxformer.parity.logprobs.distributions import UNITS, log_softmax, tolerances
from jaxformer.parity.logprobs.report import LogprobCause, SideName

MARGIN = 32.0
"""Ratio by which a cause has to lessen the difference, besides making it as small as rounding."""
MOST_ENLARGED = 16.0
"""Factor by which a transformation may enlarge the tolerance, as a low temperature enlarges rounding."""
FLIPPED = 0.05
"""Largest share of values that may be rounded to the other neighbour, since the two sides' unrounded ones differ a little."""
NEAR = 64.0
"""Tolerances within which a solved number may be rounded to one that fits."""
SMALL = 2**14
"""Number of logits on which numbers are solved before all are tried."""
HALVES: dict[str, Any] = {"bfloat16": jnp.bfloat16, "float16": np.float16}


@dataclass(frozen=True)
class Evidence:
    """Logits `N V` of the side that is transformed and of the side that is to come out, at N places."""

    base: np.ndarray
    target: np.ndarray
    kept: np.ndarray
    """True for ids that have a probability on both sides."""
    precision: str
    ids: np.ndarray
    """Ids `B L` of all rows."""
    rows: np.ndarray
    places: np.ndarray
    """Row and place of each of the N places."""
    prompt: int
    """Number of ids of the prompt."""

    @property
    def unit(self) -> float:
        """Unit roundoff of the precision."""
        return UNITS[self.precision]

    @cached_property
    def wanted(self) -> np.ndarray:
        """Log-probabilities of the target among the ids that are kept."""
        return log_softmax(self.target, self.kept)

    @cached_property
    def before(self) -> float:
        """Difference of both sides in tolerances."""
        return self.off(self.base)

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of times that each id `N V` was read up to the place, in the prompt too."""
        return self._counts(0)

    @cached_property
    def counts_of_output(self) -> np.ndarray:
        """Number of times that each id `N V` was read up to the place, after the prompt."""
        return self._counts(self.prompt)

    def _counts(self, start: int) -> np.ndarray:
        vocab = self.base.shape[-1]
        found = np.zeros((len(self.base), vocab), np.int64)
        for n, (row, place) in enumerate(zip(self.rows, self.places, strict=True)):
            read, times = np.unique(self.ids[row, start : place + 1], return_counts=True)
            inside = read < vocab
            found[n, read[inside]] = times[inside]
        return found

    def tolerance(self, values: np.ndarray) -> np.ndarray:
        """Tolerance at each place, if `values` are the logits; what makes them huge does not hide differences."""
        hidden = np.where(self.kept, values, -np.inf)
        return np.minimum(
            tolerances(self.unit, hidden, self.target), MOST_ENLARGED * tolerances(self.unit, self.base, self.target)
        )

    def off(self, values: np.ndarray) -> float:
        """Largest difference of the logits' distributions from the target's, in tolerances."""
        with np.errstate(invalid="ignore"):
            return self._largest(np.abs(log_softmax(values, self.kept) - self.wanted), values)

    def near(self, values: np.ndarray, within: float = NEAR) -> bool:
        """True if logits are so near to the target that rounder numbers are worth a try."""
        return self.off(values) <= within

    def off_either(self, values: np.ndarray, others: np.ndarray) -> float:
        """Largest difference where each logit may be one of two, both up to a constant at each place."""
        level = self.levels(values)
        gaps = [np.abs(self.target - each - level) for each in (values, others)]
        tolerance = self.tolerance(values)[:, None]
        if ((gaps[0] > tolerance) & self.kept).sum() > FLIPPED * self.kept.sum():
            return np.inf
        return self._largest(np.minimum(*gaps), values)

    def _largest(self, gap: np.ndarray, values: np.ndarray) -> float:
        if not self.kept.any():
            return 0.0
        found = float((np.where(self.kept, gap, 0.0) / self.tolerance(values)[:, None]).max())
        return found if found == found else np.inf

    def levels(self, values: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
        """Constant of each place `N 1` by which the target is above the logits: the median over ids."""
        among = self.kept if among is None else among & self.kept
        with np.errstate(invalid="ignore"):
            gap = np.where(among, self.target - values, np.nan)
        lacks = ~among.any(-1)
        gap[lacks] = 0.0
        return np.nanmedian(gap, -1, keepdims=True)

    def slopes(self, values: np.ndarray, among: np.ndarray | None = None) -> float:
        """Factor that gives the target's differences between ids from the logits': a median, which few ids hardly move."""
        among = self.kept if among is None else among & self.kept
        ratios = []
        for base, target, here in zip(values, self.target, among, strict=True):
            if (n := int(here.sum())) > 1:
                order = np.flatnonzero(here)[np.argsort(base[here])]
                low, high = order[: n - n // 2], order[n // 2 :]
                gap = base[high] - base[low]
                wide = gap > 0
                ratios.append((target[high] - target[low])[wide] / gap[wide])
        found = np.concatenate(ratios) if ratios else np.empty(0)
        return float(np.median(found)) if found.size else np.nan

    def at(self, chosen: np.ndarray) -> "Evidence":
        """Return the evidence at some of the places."""
        parts = {name: getattr(self, name)[chosen] for name in ("base", "target", "kept", "rows", "places")}
        return replace(self, **parts)

    def small(self) -> "Evidence":
        """Return the evidence at a few places with several ids, on which numbers are solved."""
        telling = np.flatnonzero(self.kept.sum(-1) > 1)
        most = max(4, SMALL // self.base.shape[1])
        return self if not len(telling) else self.at(telling[np.unique(np.linspace(0, len(telling) - 1, most).astype(int))])


class Transform(NamedTuple):
    """Transformation of logits, and the cause that it is."""

    cause: LogprobCause
    apply: Callable[[Evidence, np.ndarray], np.ndarray]
    rounds: str = ""
    """Type to which it rounds; else ''."""


class Fit(NamedTuple):
    """Transformations that give the target's distribution among the kept ids."""

    transforms: tuple[Transform, ...]
    stages: tuple[np.ndarray, ...]
    """Logits `N V` before the first transformation and after each."""


def cause(name: str, says: str, side: SideName = "sampler", /, **args: Any) -> LogprobCause:
    """Return a cause of a search that transforms the trainer's logits; `says` names the sides as {sampler} and {trainer}."""
    return LogprobCause(name, side, args, says)


def in_words(each: LogprobCause, *, swapped: bool) -> LogprobCause:
    """Return a cause with its words filled in; `swapped` if it was the sampler's logits that were transformed."""
    names: dict[SideName, SideName] = (
        {"sampler": "trainer", "trainer": "sampler"}
        if swapped
        else {
            "sampler": "sampler",
            "trainer": "trainer",
        }
    )
    return replace(each, side=names[each.side], says=each.says.format(**names))


def halved(values: np.ndarray, name: str) -> np.ndarray:
    """Round values to bfloat16 or float16."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(HALVES[name]).astype(np.float64)


def tried(evidence: Evidence, transforms: Sequence[Transform]) -> Fit | None:
    """Apply transformations in order; None if they do not give the target to rounding."""
    stages = [evidence.base]
    other = evidence.base
    for each in transforms:
        now = each.apply(evidence, stages[-1])
        if each.rounds:
            slack = evidence.tolerance(stages[-1])[:, None]
            low, high = (each.apply(evidence, stages[-1] + sign * slack) for sign in (-1, 1))
            other = np.where(now == high, low, high)
        elif other is not stages[0]:
            other = each.apply(evidence, other)
        stages.append(now)
    rounds = any(each.rounds for each in transforms)
    with np.errstate(invalid="ignore"):
        off = evidence.off(stages[-1])
        if off > 1 and rounds:
            off = evidence.off_either(stages[-1], other)
    if off <= 1 and (not transforms or off * MARGIN <= evidence.before):
        return Fit(tuple(transforms), tuple(stages))
    return None
