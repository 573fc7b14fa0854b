"""Two watched runs beside each other: the first step at which they differ by more than rounding. Does not import jax."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxformer.errors import InputError
from jaxformer.runs.bands import spoken
from jaxformer.runs.folder import METRICS, RunFolder
from jaxformer.runs.metrics import checked_lines, read_data
from jaxformer.runs.watched import ROWS, read_rows, series_of

ROUNDING = 1e-4
"""Relative difference of two norms that rounding in float32 may give at any watched step."""
GROWTH = 10.0
"""Factor by which rounding may grow from one watched step of both runs to the next."""
APART = 0.1
"""Relative difference at which two runs are no longer the same run, however they came there."""
SMALL = 1e-6
"""Share of the largest value of a quantity; smaller values count as this large."""


@dataclass(frozen=True)
class Run:
    """Watched run."""

    name: str
    rows: Mapping[int, Mapping[str, float]]
    """Step -> series -> value."""
    losses: Mapping[str, Mapping[int, float]]
    """Losses of the evaluations: name -> step -> value."""

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run's folder; InputError if it has no watched steps."""
        identity = RunFolder(folder).identity
        rows = {int(row["step"]): series_of(row) for row in read_rows(folder, identity)}
        if not rows:
            why = f"has no {ROWS}" if folder.is_dir() else "is no folder"
            raise InputError(f"{folder} {why}; give a run that was watched: train with --watch N, jf.watch or jf.watch_torch")
        lines = [line for line in checked_lines(read_data(folder / METRICS), identity) if line is not None]
        names = dict.fromkeys(name for line in lines for name in line if name.endswith("loss"))
        losses = {name: {int(line["step"]): line[name] for line in lines if name in line} for name in names}
        return cls(str(folder), rows, losses)


@dataclass(frozen=True)
class Difference:
    """Relative differences of two runs at a step that both watched."""

    step: int
    relative: Mapping[str, float]
    """Series -> relative difference, in the order in which a step computes them."""
    allowed: float
    """Largest one that rounding explains."""

    @property
    def over(self) -> list[str]:
        """Series that differ by more than rounding, in order."""
        return [series for series, difference in self.relative.items() if not difference <= self.allowed]

    @property
    def largest(self) -> float:
        """Largest relative difference."""
        return max(self.relative.values())


@dataclass(frozen=True)
class Comparison:
    """Two runs, and their differences at the steps that both watched."""

    first: Run
    second: Run
    differences: Sequence[Difference]

    @property
    def series(self) -> list[str]:
        """Series that both runs have, in the order in which a step computes them."""
        return list(self.differences[0].relative)

    @property
    def divergence(self) -> Difference | None:
        """First step at which the runs differ by more than rounding; None if there is none."""
        return next((each for each in self.differences if each.over), None)

    @property
    def verdict(self) -> str:
        """Result in one line."""
        watched = f"{len(self.series)} series at {len(self.differences)} watched steps"
        if (found := self.divergence) is not None:
            series, more = found.over[0], len(found.over) - 1
            here, there = (run.rows[found.step][series] for run in (self.first, self.second))
            others = f", and {more} more series" if more else ""
            sizes = (
                f"{here:.6g} and {there:.6g}, apart by {found.relative[series]:.1e} where rounding explains {found.allowed:.0e}"
            )
            return f"DIVERGED: at step {found.step:,}, first {spoken(series)}: {sizes}{others}"
        largest = max(each.largest for each in self.differences)
        if apart := next((each for each in self.differences if each.largest > APART), None):
            return (
                f"NO JUMP: {watched}; rounding that grows step by step takes them apart by {APART:.0%} at step {apart.step:,}"
            )
        return f"SAME: {watched}, apart by at most {largest:.1e}"


def compare(first: Run, second: Run) -> Comparison:
    """Compare two runs; InputError if they have no watched step, or no series, in common.

    A step diverges if a series differs, relative to the larger value, by more than ROUNDING, and by more than GROWTH times the
    largest difference of any series at the common step before: rounding grows, and does not jump.
    """
    steps = sorted(first.rows.keys() & second.rows.keys())
    if not steps:
        raise InputError(f"{first.name} and {second.name} have no watched step in common; watch both at the same steps")
    series = [each for each in first.rows[steps[0]] if all(each in run.rows[step] for step in steps for run in (first, second))]
    if not series:
        raise InputError(f"{first.name} and {second.name} have no series in common: their modules have different names")
    found, allowed = list[Difference](), ROUNDING
    for step in steps:
        here, there = first.rows[step], second.rows[step]
        scale = dict[str, float]()
        for each in series:
            values = [abs(value) for value in (here[each], there[each]) if math.isfinite(value)]
            scale[quantity(each)] = max(scale.get(quantity(each), 0.0), *values, 0.0)
        relative = {each: apart(here[each], there[each], SMALL * scale[quantity(each)]) for each in series}
        found.append(Difference(step, relative, allowed))
        allowed = max(ROUNDING, GROWTH * found[-1].largest)
    return Comparison(first, second, found)


def apart(a: float, b: float, least: float) -> float:
    """Relative difference of two numbers; 0 for two that are NaN or infinite alike, infinity if only one is finite."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b), least) if math.isfinite(a) and math.isfinite(b) else math.inf


def quantity(series: str) -> str:
    """Return the quantity of a series: 'gradient' of 'gradient/stack.blocks.0'."""
    return series.partition("/")[0]
