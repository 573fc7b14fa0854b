"""Bands of watched series: where the next value is expected, from the watched steps before. Does not import jax."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

WINDOW = 30
"""Number of watched steps that a band is made of."""
RECENT = 1
"""Number of the last of them whose median is in the band too, so that a steady trend does not leave it."""
WARM_UP = 20
"""Number of watched steps before a value can leave its band."""
SPREADS = 7.0
"""Half the width of a band, in robust standard deviations of the logarithm (1.4826 times the median absolute deviation)."""
LEAST = 1.8
"""Smallest factor between a median and the end of its band."""
NORMAL = 1.4826
"""Standard deviation of a normal distribution in median absolute deviations."""
SMALLEST = 1e-30
"""Value that smaller ones are counted as: the logarithm of zero is infinite."""


def spoken(series: str) -> str:
    """Format a series: 'gradient of stack.blocks.0'."""
    quantity, _, module = series.partition("/")
    return f"{quantity} of {module}" if module else quantity


@dataclass(frozen=True)
class Finding:
    """First series, in the order in which a step computes them, whose value left its band at a watched step."""

    step: int
    series: str
    value: float
    low: float
    high: float
    more: int
    """Number of further series that left theirs at the same step."""

    def __str__(self) -> str:
        more = f"; {self.more} more series left theirs" if self.more else ""
        band = f"its band {self.low:.4g} to {self.high:.4g}"
        return f"step {self.step:,}: {spoken(self.series)} is {self.value:.4g}, outside of {band}{more}"


class Bands:
    """Bands of all series: from the median of the last WINDOW or RECENT values, whichever is lower, divided by a factor, to the
    higher one times the factor. The factor is SPREADS robust standard deviations of the logarithms, and at least LEAST.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.logs = np.zeros((0, 0))

    def check(self, step: int, values: Mapping[str, float]) -> Finding | None:
        """Return the first series that left its band, or is not finite; then let the values widen the bands."""
        names, given = [*values], np.array([*values.values()], np.float64)
        finite = np.isfinite(given)
        logs = np.log(np.maximum(np.abs(np.where(finite, given, 0.0)), SMALLEST))
        if names != self.names:
            self.names, self.logs = names, np.zeros((0, len(names)))
        low, high = self._bands()
        left = ~finite | (logs < low) | (logs > high)
        self.logs = np.concatenate([self.logs, np.where(finite, logs, self._level(RECENT))[None]])[-WINDOW:]
        if not left.any():
            return None
        first, more = int(left.argmax()), int(left.sum()) - 1
        ends = float(np.exp(low[first])), float(np.exp(high[first]))
        return Finding(step, names[first], float(given[first]), *ends, more)

    def _level(self, n: int) -> np.ndarray:
        """Return the median of the last n values of each series."""
        return np.median(self.logs[-n:], axis=0) if len(self.logs) else np.zeros(len(self.names))

    def _bands(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of each band, as logarithms."""
        if len(self.logs) < WARM_UP:
            return np.full(len(self.names), -np.inf), np.full(len(self.names), np.inf)
        median, recent = self._level(WINDOW), self._level(RECENT)
        spread = NORMAL * np.median(np.abs(self.logs - median), axis=0)
        width = np.maximum(SPREADS * spread, np.log(LEAST))
        return np.minimum(median, recent) - width, np.maximum(median, recent) + width
