"""From errors to heights: a logarithmic scale that has a place for zero below it, and one for infinity above."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from jaxformer.parity.report.html_elements import Markup, tag, together

LEFT, RIGHT = 52.0, 14.0
"""Margins of a plot: the numbers stand in the left one."""
BAND = 18.0
"""How far zero is below the lowest power of ten, and infinity above the highest."""
LOWEST, HIGHEST = -20, 8
"""Powers of ten; smaller and larger errors are drawn at the ends."""
EXPONENTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class LogAxis:
    """Powers of ten from `low` to `high`, and where these two are drawn."""

    low: int
    high: int
    top: float
    bottom: float
    infinite: bool = False
    """Whether something is at infinity."""

    @classmethod
    def over(cls, values: Iterable[float], *, top: float, bottom: float) -> "LogAxis":
        """One that holds all values, a few powers of ten at the least, between two heights."""
        given = list(values)
        finite = [abs(value) for value in given if math.isfinite(value) and value]
        infinite = any(not math.isfinite(value) for value in given)
        low = max(math.floor(math.log10(min(finite, default=1e-16))), LOWEST)
        high = min(math.ceil(math.log10(max(finite, default=1e-12))), HIGHEST)
        return cls(min(low, HIGHEST - 3), max(high, low + 3), top + (BAND if infinite else 0), bottom - BAND, infinite)

    def y(self, value: float) -> float:
        """Where a value is drawn; NaN is with infinity."""
        if not math.isfinite(value):
            return self.top - BAND
        if value == 0:
            return self.zero
        part = (math.log10(abs(value)) - self.low) / (self.high - self.low)
        return self.bottom - min(max(part, 0.0), 1.0) * (self.bottom - self.top)

    @property
    def zero(self) -> float:
        """The height of zero."""
        return self.bottom + BAND

    def grid(self, width: float) -> Markup:
        """Lines across the plot with their numbers."""
        every = next((n for n in (1, 2, 4) if (self.high - self.low) / n <= 6), 8)
        marks = [
            (float(f"1e{e}"), f"10{str(e).translate(EXPONENTS)}") for e in range(self.low, self.high + 1) if e % every == 0
        ]
        marks += [(0.0, "0"), *([(math.inf, "∞")] if self.infinite else [])]
        return together(*(rule(self.y(value), label, width) for value, label in marks))


@dataclass(frozen=True)
class LinearAxis:
    """Finite values between two heights."""

    low: float
    high: float
    top: float
    bottom: float

    @classmethod
    def over(cls, values: Iterable[float], *, top: float, bottom: float) -> "LinearAxis":
        """One that holds them all."""
        given = list(values)
        low, high = min(given, default=0.0), max(given, default=1.0)
        return cls(low, high if high > low else low + 1, top, bottom)

    def y(self, value: float) -> float:
        """Where a value is drawn."""
        return self.bottom - (value - self.low) / (self.high - self.low) * (self.bottom - self.top)

    def grid(self, width: float) -> Markup:
        """Five lines across the plot with their numbers."""
        marks = [self.low + part / 4 * (self.high - self.low) for part in range(5)]
        return together(*(rule(self.y(mark), f"{mark:.4g}", width) for mark in marks))


def rule(y: float, label: str, width: float) -> Markup:
    """One line of a grid."""
    return together(
        tag("line", class_="grid", x1=LEFT, x2=width - RIGHT, y1=y, y2=y),
        tag("text", label, class_="tick", x=LEFT - 8, y=y + 4, text_anchor="end"),
    )


def tolerance_line(y: float, width: float) -> Markup:
    """Errors below it count as equal."""
    return tag("line", class_="noise", x1=LEFT, x2=width - RIGHT, y1=y, y2=y)


def path(xs: Iterable[float], ys: Iterable[float]) -> str:
    """A broken line through points."""
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
