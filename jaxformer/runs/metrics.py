"""Lines of metrics.jsonl: one for each evaluation, each with its own checksum, so that a damaged line costs one line; and the
progress of a run: its speed, and how many steps its next dispatch takes."""

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
"""A measure of the evaluation, and the value at which a run stops."""
CHECK = "crc32"
"""The key of a line's check; older files have none."""


def is_last(line: Mapping[str, float | int], steps: int, goal: Goal | None) -> bool:
    """Whether a run of so many steps ends with this line, or because its goal is met."""
    return line["step"] >= steps or (goal is not None and line[goal[0]] >= goal[1])


def checked_line(run: str, values: Mapping[str, float | int]) -> str:
    """Values as one line, with the CRC-32 of the run's identity and the rest, its end included."""
    check = zlib.crc32(run.encode() + json.dumps(values).encode())
    return json.dumps({**values, CHECK: f"{check:08x}"}) + "\n"


def read_lines(path: Path, run: str, least: int) -> list[Line]:
    """Every whole line of the run, without its check. There is a warning for one that is damaged, or incomplete after a crash,
    which is left out, and for a file of less than `least` bytes."""
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
    """The bytes of the file, none where there is none; a last line that lacks nothing but its end has it."""
    data = read_small(path) if path.exists() else b""
    return data + b"\n" * (data[-1:] not in (b"", b"\n"))


def checked_lines(data: bytes, run: str) -> list[Line | None]:
    """Every line, None in the place of one that is damaged or of another run."""
    lines = data.splitlines(keepends=True)
    has_checks = any(f'"{CHECK}"'.encode() in line for line in lines)
    of_run = any(_read(line, run, has_checks) for line in lines)  # a file of older lines names no run
    return _in_order(_read(line, run if of_run else "", has_checks) for line in lines)


def _in_order(lines: Iterable[Line | None]) -> list[Line | None]:
    """Lines as a run writes them, each of a later step; one that is not has been put there."""
    found, last = list[Line | None](), -1
    for line in lines:
        found.append(line if line is not None and line["step"] > last else None)
        last = last if found[-1] is None else found[-1]["step"]
    return found


def _read(line: bytes, run: str, has_check: bool) -> Line | None:
    """The values of a line; None where it is damaged."""
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
"""Between two dispatches a run shows its progress, and stops if it was asked to."""


class Pace:
    """Seconds a step, and how many of them the next dispatch takes."""

    def __init__(self) -> None:
        self.seconds, self.size = math.inf, 1
        self.restart()

    def restart(self) -> None:
        """Time what follows alone."""
        self.start = time.perf_counter()

    def count(self, n: int) -> None:
        """n steps were taken. The first dispatch includes the compilation."""
        now = time.perf_counter()
        self.seconds = min(self.seconds, (now - self.start) / n) if n == 1 else (now - self.start) / n
        self.start = now
        self.size = max(1, min(2 * n, round(SECONDS_A_DISPATCH / self.seconds)))


def clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
