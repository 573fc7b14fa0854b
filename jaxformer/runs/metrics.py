"""Metrics and pace of a run.

metrics.jsonl has a line for each evaluation, each with its own checksum, so that corruption costs a single line. The pace is a
run's speed, and the number of steps of its next dispatch.
"""

import json
import math
import time
import warnings
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from jaxformer.validation.fields import read_small

Line = dict[str, float | int]
Goal = tuple[str, float]
"""Measure of the evaluation, and the value at which a run stops."""
CHECK = "crc32"
"""Key of a line's checksum; older files have none."""


def is_last(line: Mapping[str, float | int], steps: int, goal: Goal | None) -> bool:
    """True if a run of so many steps ends with this line, or because its goal is met."""
    return line["step"] >= steps or (goal is not None and line[goal[0]] >= goal[1])


def checked_line(run: str, values: Mapping[str, float | int]) -> str:
    """Format values as one line, with the CRC-32 of the run's identity and the values."""
    check = zlib.crc32(run.encode() + json.dumps(values).encode())
    return json.dumps({**values, CHECK: f"{check:08x}"}) + "\n"


def read_lines(path: Path, run: str, least: int) -> list[Line]:
    """Read every intact line of the run, without its checksum.

    A line that is corrupted, or incomplete after a crash, is left out with a warning; a file of less than `least` bytes is
    warned of.
    """
    data = read_data(path)
    found = checked_lines(data, run)
    if damaged := [str(number) for number, line in enumerate(found, start=1) if line is None]:
        which = f"lines {', '.join(damaged)} are" if damaged[1:] else f"line {damaged[0]} is"
        warnings.warn(f"{path}: {which} damaged, incomplete or not of this run, and left out", stacklevel=3)
    if len(data) < least:
        said = f"it has {len(data):,} bytes, and was written with {least:,}: the steps in the rest are not known"
        warnings.warn(f"{path} is cut: {said}", stacklevel=3)
    return [line for line in found if line is not None]


def read_data(path: Path) -> bytes:
    """Read the bytes of the file, b"" if there is none; a missing final line end is added."""
    data = read_small(path) if path.exists() else b""
    return data + b"\n" * (data[-1:] not in (b"", b"\n"))


def checked_lines(data: bytes, run: str) -> list[Line | None]:
    """Parse every line; None in place of one that is corrupted or of another run."""
    lines = data.splitlines(keepends=True)
    has_checks = any(f'"{CHECK}"'.encode() in line for line in lines)
    of_run = any(_read(line, run, has_checks) for line in lines)  # older lines do not name a run
    return _in_order(_read(line, run if of_run else "", has_checks) for line in lines)


def _in_order(lines: Iterable[Line | None]) -> list[Line | None]:
    """Keep lines whose steps increase, as a run writes them; None in place of others, which the run did not write there."""
    found, last = list[Line | None](), -1
    for line in lines:
        found.append(line if line is not None and line["step"] > last else None)
        last = last if found[-1] is None else found[-1]["step"]
    return found


def _read(line: bytes, run: str, has_check: bool) -> Line | None:
    """Return the values of a line; None if it is corrupted."""
    try:
        values = json.loads(line)
        if has_check:
            del values[CHECK]
        whole = not has_check or line == checked_line(run, values).encode()
        whole = whole and isinstance(values["step"], int)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return values if whole else None


SECONDS_A_DISPATCH = 1.0
"""Target duration of a dispatch: between two of them a run shows its progress, and stops if asked to."""


class Pace:
    """Seconds per step, and number of steps of the next dispatch."""

    def __init__(self) -> None:
        self.seconds, self.size = math.inf, 1
        self.restart()

    def restart(self) -> None:
        """Restart the timing: only what follows counts."""
        self.start = time.perf_counter()

    def count(self, n: int) -> None:
        """Count n steps as taken. The first dispatch includes the compilation."""
        now = time.perf_counter()
        self.seconds = min(self.seconds, (now - self.start) / n) if n == 1 else (now - self.start) / n
        self.start = now
        self.size = max(1, min(2 * n, round(SECONDS_A_DISPATCH / self.seconds)))


def clock(seconds: float) -> str:
    """Format seconds as 1:02:03 or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
