"""Rows of a watched run: the norms of each watched step in watch.jsonl, and as scalars for TensorBoard.

A row has a step, a number for each series, and a checksum, as a line of metrics has. Where series left their bands at that
step, `left` names the first one, and `low` and `high` are the ends of its band; `rounding` names the modules of which a
parameter's update is rounding alone. Numbers may be NaN and Infinity, which Python
and pandas read. The run does not depend on these files: where one cannot be written, the rest of the run is not watched.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxformer.errors import InputError, MissingPackageError
from jaxformer.io.atomic import written_whole
from jaxformer.parallel.group import is_first
from jaxformer.runs.bands import Bands
from jaxformer.runs.metrics import checked_line, checked_lines
from jaxformer.runs.tensorboard import Events

ROWS = "watch.jsonl"
ROUNDING = "rounding"
"""Quantity of updates that come of rounding alone; a row names the modules that have one."""
TINY, AMPLIFIED = 1e-5, 1e-3
"""Share of the largest gradient of all parameters below which one is rounding, if its update is above this share of theirs."""
NOT_SERIES = "step", "left", "low", "high", ROUNDING
"""Keys of a row that are no series."""
DIGITS = 9
"""Significant digits of a number: those of float32."""

Row = dict[str, Any]


def read_rows(folder: Path, run: str = "") -> list[Row]:
    """Read the intact rows of a run, whose identity is `run`, in order; none if it was not watched."""
    return [row for row in checked_rows(folder, run) if row is not None]


def checked_rows(folder: Path, run: str) -> list[Row | None]:
    """Read every row of a run; None in place of one that is damaged or of another run."""
    path = folder / ROWS
    return [*checked_lines(path.read_bytes() if path.is_file() else b"", run)]


def series_of(row: Row) -> dict[str, float]:
    """Return the numbers of a row by series."""
    return {name: float(value) for name, value in row.items() if name not in NOT_SERIES}


def quantity(series: str) -> str:
    """Return the quantity of a series: 'gradient' of 'gradient/stack.blocks.0'."""
    return series.partition("/")[0]


class Monitor:
    """Writer of a run's rows, which says where a series leaves its band."""

    def __init__(self, folder: Path, every: int, run: str, say: Callable[[str], None]):
        self.path, self.every, self.run, self.say = folder / ROWS, every, run, say
        self.bands, self.is_quiet, self.is_off = Bands(), False, False
        self.events: Events | None = None

    @classmethod
    def begin(cls, folder: Path, every: int, taken: int, *, run: str = "", say: Callable[[str], None] = print) -> "Monitor":
        """Go on with the rows of a folder after so many steps, or begin them; InputError if it has rows of later steps.

        Of several processes, the first one writes.
        """
        monitor = cls(folder, every, run, say)
        if not is_first():
            monitor.is_off = True
            return monitor
        rows = read_rows(folder, run)
        if rows and rows[-1]["step"] > taken:
            had = f"has rows up to step {rows[-1]['step']:,}, and {taken:,} steps were taken"
            raise InputError(f"{folder / ROWS} {had}; name another folder, or say how many")
        for row in rows:
            monitor.bands.check(row["step"], series_of(row))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            monitor.events = Events(folder, "watch", taken)
        except MissingPackageError as error:
            say(f"no files for TensorBoard are written: {error}")
        except OSError as error:
            raise InputError(f"{folder} cannot be written: {error.strerror}; name another folder") from None
        return monitor

    def is_due(self, step: int) -> bool:
        """True if a step is watched, counted from 1: the first one, and every multiple of `every`."""
        return step == 1 or step % self.every == 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the row of a step, and say which series left its band, unless one had at the watched step before."""
        if self.is_off:
            return
        alone = sorted(name.partition("/")[2] for name in values if quantity(name) == ROUNDING)
        values = {name: value for name, value in values.items() if quantity(name) != ROUNDING}
        found = self.bands.check(step, values)
        row: Row = {"step": step, **{name: float(f"{value:.{DIGITS}g}") for name, value in values.items()}}
        row |= {ROUNDING: alone} if alone else {}
        if found is not None:
            row |= {"left": found.series, "low": found.low, "high": found.high}
            if not self.is_quiet:
                self.say(f"watch: {found}")
        self.is_quiet = found is not None
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(checked_line(self.run, row))
        except OSError as error:
            self.is_off = True
            self.say(f"warning: {self.path} cannot be written: {error.strerror}; the rest of the run is not watched")
        if self.events is not None:
            self.events.write(step, {**values, "left its band": 0 if found is None else found.more + 1})


def forget_rows(folder: Path, taken: int, run: str) -> None:
    """Drop the rows of steps that a resumed run will take again."""
    rows = read_rows(folder, run)
    if rows and rows[-1]["step"] > taken:
        with written_whole(folder / ROWS) as unfinished:
            unfinished.write_text("".join(checked_line(run, row) for row in rows if row["step"] <= taken), "utf-8")
