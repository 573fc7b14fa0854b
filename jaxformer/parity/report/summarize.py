"""Short summaries of many names and positions: layer numbers become `*`, consecutive numbers become ranges."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

MOST_RANGES = 3
"""Maximum number of ranges to list; more entries are counted instead."""
MOST_NAMES = 6
"""Maximum number of names to list; the rest are counted."""

LAYER = re.compile(r"(?<![^._])\d+(?![^.])")
"""Number of a layer in a path, as in 'layers.0' and 'layers_0.norm', but not in 'linear1'."""
CALLS = re.compile(r" \(call \d+\)$")


def ranges(numbers: Iterable[int]) -> list[str]:
    """Merge consecutive numbers: ['0', '3-5'] for 0, 3, 4, 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]


def part_of(entries: np.ndarray, what: str) -> str:
    """Describe the True entries: 'rows 3-5 of 9', 'row 3 of 9', '30 of 99 rows', '3-5 of 9' if `what` is ''; '' if all are
    True."""
    if entries.all():
        return ""
    found = ranges(np.flatnonzero(entries).tolist())
    if len(found) > MOST_RANGES:
        return f"{int(entries.sum())} of {entries.size} {what or 'entries'}"
    one = what.removesuffix("s") if entries.sum() == 1 else what
    return f"{one} {', '.join(found)} of {entries.size}".strip()


def say_parameters(not_covered: dict[str, np.ndarray], names: Sequence[str]) -> list[str]:
    """Describe each parameter with its rows, columns or entries; what holds for all layers is said once.

    `names` are the names of all parameters.
    """
    said: dict[str, list[str]] = {}
    for name, entries in not_covered.items():
        for part in _parts(entries):
            said.setdefault(f"{_stars(name)}|{part}", []).append(name)
    phrases = []
    for key, found in said.items():
        stars, part = key.split("|")
        whole = len(found) > 1 and len(found) == sum(_stars(name) == stars for name in names)
        phrases += [f"{name}{': ' if part else ''}{part}" for name in ([stars] if whole else _layers(found))]
    return phrases


def say_names(names: Sequence[str], every: Sequence[str]) -> list[str]:
    """List names, those of all layers once and many as a number; `every` are all names there are."""
    said = say_parameters({name: np.ones(1, bool) for name in names}, every)
    return said if len(said) <= MOST_NAMES else [*said[:MOST_NAMES], f"{len(said) - MOST_NAMES} more"]


def alike(name: str) -> str:
    """Replace layer numbers by `*` and drop the call's number, so that corresponding modules of all layers get one name."""
    return LAYER.sub("*", CALLS.sub("", name))


def say_alike(names: Sequence[str]) -> str:
    """Summarise modules that are `alike`, as 'layers.*.norm (3 calls, first layers.0.norm)': a star stands where their numbers
    differ."""
    if len(names) == 1:
        return names[0]
    first, *others = (CALLS.sub("", name) for name in names)
    columns = zip(*(LAYER.findall(name) for name in (first, *others)), strict=True)
    shown = iter("*" if len(set(column)) > 1 else column[0] for column in columns)
    return f"{LAYER.sub(lambda _: next(shown), first)} ({len(names)} calls, first {names[0]})"


def _parts(entries: np.ndarray) -> list[str]:
    """Describe the True entries by rows, columns or entries; '' for all entries."""
    if entries.all():
        return [""]
    if entries.ndim < 2:
        return [part_of(entries, "")]
    rows = np.asarray(entries.all(axis=tuple(range(1, entries.ndim))))
    columns = np.asarray(entries.all(axis=(0, *range(2, entries.ndim))))
    return [part_of(slices, what) for slices, what in ((rows, "rows"), (columns, "columns")) if slices.any()]


def _stars(name: str) -> str:
    """Return the name with `*` for every number."""
    return re.sub(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)|(?<=\.)\d+$", "*", name)


def _layers(names: Sequence[str]) -> list[str]:
    """Merge names that differ in one number, as 'h.0,3-5.attn.bias'; other names are returned unchanged."""
    parts = [name.split(".") for name in names]
    differing = [at for at, column in enumerate(zip(*parts, strict=True)) if len(set(column)) > 1]
    if len(differing) != 1:
        return list(names)
    (at,) = differing
    numbers = ",".join(ranges(int(part[at]) for part in parts))
    return [".".join([*parts[0][:at], numbers, *parts[0][at + 1 :]])]


def say_positions(name: str, not_covered: np.ndarray, hidden: tuple[np.ndarray, str]) -> list[str]:
    """Describe uncovered entries of an array `rows positions`: a count of those that a mask hides, and the places of the
    others."""
    masked, mask = hidden
    if not not_covered.any():
        return []
    if not_covered.all() and not mask:
        return [f"{name}: all of it"]
    said = [f"{name}: {int(masked.sum())} positions masked by {mask}"] if mask else []
    rows: dict[bytes, list[int]] = {}
    others = not_covered & ~masked
    for row, positions in enumerate(others):
        if positions.any():
            rows.setdefault(positions.tobytes(), []).append(row)
    for same in rows.values():
        where = _where(others[same[0]], same, len(others))
        said.append(f"{name}: {where}")
    return said


def _where(positions: np.ndarray, rows: list[int], total: int) -> str:
    of_rows = f"row{'s' if len(rows) > 1 else ''} {', '.join(ranges(rows))}"
    if positions.all():
        return of_rows
    found = ranges(np.flatnonzero(positions).tolist())
    listed = f"positions {', '.join(found)}" if len(found) <= MOST_RANGES else f"{int(positions.sum())} positions"
    return listed if len(rows) == total else f"{listed} of {of_rows}"
