"""Two watched runs beside each other: the first step at which they differ by more than rounding. Does not import jax."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxformer.errors import InputError
from jaxformer.runs.bands import spoken
from jaxformer.runs.folder import METRICS, RunFolder
from jaxformer.runs.metrics import checked_lines, read_data
from jaxformer.runs.watched import ROUNDING as ALONE
from jaxformer.runs.watched import ROWS, checked_rows, quantity, series_of

ROUNDING = 1e-4
"""Relative difference of two norms that rounding in float32 may give at any watched step."""
GROWTH = 10.0
"""Factor by which rounding may grow from one watched step of both runs to the next."""
APART = 0.1
"""Relative difference at which two runs are no longer the same run, however they came there."""
LISTED = 3
"""Number of modules that a verdict names."""
MOVED = "weight", "activation", "update"
"""Quantities of a module that an update of rounding alone moves."""
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
    rounding: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Step -> modules of which a parameter's update is rounding alone."""
    n_damaged: int = 0
    """Number of rows that could not be read."""

    @classmethod
    def read(cls, folder: Path) -> "Run":
        """Read a run's folder; InputError if it has no watched steps."""
        identity = RunFolder(folder).identity
        found = checked_rows(folder, identity)
        intact = [row for row in found if row is not None]
        rows = {int(row["step"]): series_of(row) for row in intact}
        if not rows:
            why = f"has no {ROWS}" if folder.is_dir() else "is no folder"
            raise InputError(f"{folder} {why}; give a run that was watched: train with --watch N, jf.watch or jf.watch_torch")
        lines = [line for line in checked_lines(read_data(folder / METRICS), identity) if line is not None]
        names = dict.fromkeys(name for line in lines for name in line if name.endswith("loss"))
        losses = {name: {int(line["step"]): line[name] for line in lines if name in line} for name in names}
        rounding = {int(row["step"]): row.get(ALONE, []) for row in intact}
        return cls(str(folder), rows, losses, rounding, found.count(None))


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
    left_out: Sequence[str]
    """Modules of which a parameter's update is rounding alone: what it moves is not compared from that step on."""

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
        return "; ".join([self._result(), *self._remarks()])

    def _remarks(self) -> Iterator[str]:
        if self.left_out:
            which = ", ".join(self.left_out[:LISTED]) + (
                f" and {len(self.left_out) - LISTED} more" if self.left_out[LISTED:] else ""
            )
            yield f"weight, activation and update of {which} left out: the gradient of a parameter is rounding there"
        for run in (self.first, self.second):
            if run.n_damaged:
                yield f"{run.n_damaged} damaged row{'s' * (run.n_damaged > 1)} of {run.name}/{ROWS} left out"

    def _result(self) -> str:
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
    largest difference of any series at the common step before: rounding grows, and does not jump. What an update moves that is
    rounding alone in one of them is left out from that step on.
    """
    steps = sorted(first.rows.keys() & second.rows.keys())
    if not steps:
        raise InputError(f"{first.name} and {second.name} have no watched step in common; watch both at the same steps")
    series = [each for each in first.rows[steps[0]] if all(each in run.rows[step] for step in steps for run in (first, second))]
    if not series:
        raise InputError(f"{first.name} and {second.name} have no series in common: their modules have different names")
    found, allowed, left_out = list[Difference](), ROUNDING, dict[str, None]()
    for step in steps:
        here, there = first.rows[step], second.rows[step]
        scale = dict[str, float]()
        for each in series:
            values = [abs(value) for value in (here[each], there[each]) if math.isfinite(value)]
            scale[quantity(each)] = max(scale.get(quantity(each), 0.0), *values, 0.0)
        left_out |= dict.fromkeys(name for run in (first, second) for name in run.rounding.get(step, ()))
        kept = [each for each in series if not (quantity(each) in MOVED and each.partition("/")[2] in left_out)]
        relative = {each: apart(here[each], there[each], SMALL * scale[quantity(each)]) for each in kept}
        found.append(Difference(step, relative, allowed))
        allowed = max(ROUNDING, GROWTH * found[-1].largest)
    return Comparison(first, second, found, [*left_out])


def apart(a: float, b: float, least: float) -> float:
    """Relative difference of two numbers; 0 for two that are NaN or infinite alike, infinity if only one is finite."""
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b), least) if math.isfinite(a) and math.isfinite(b) else math.inf
