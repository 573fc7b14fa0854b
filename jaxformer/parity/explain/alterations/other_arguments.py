"""Plain arguments of an operation that are taken for one another: numbers, switches, parts of an axis."""

from typing import Any


def other_values(value: Any, name: str) -> list[Any]:
    """What could stand there instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        near = [value - 1, value + 1]
        return [*([-1] if value == 0 else [0] if value == -1 else []), *near] if name == "getitem" else near
    if isinstance(value, slice):
        ends = [(value.start, value.stop)]
        ends += [(each, value.stop) for each in moved(value.start)] + [(value.start, each) for each in moved(value.stop)]
        ends += from_other_end(value)
        return [slice(*each, value.step) for each in ends[1:]]
    if type(value) in (tuple, list) and 0 < len(value) <= 4:
        items = list(value)
        one = [[*items[:i], other, *items[i + 1 :]] for i, each in enumerate(items) for other in other_values(each, name)]
        alike = len(items) > 1 and isinstance(items[0], int) and items.count(items[0]) == len(items)
        all_of_them = [[other] * len(items) for other in other_values(items[0], name)] if alike else []
        return [type(value)(each) for each in all_of_them + one]
    return []


def from_other_end(part: slice) -> list[tuple[Any, Any]]:
    """As many, left out at the other end."""
    if part.start is None and isinstance(part.stop, int) and part.stop < 0:
        return [(-part.stop, None)]
    return [(None, -part.start)] if part.stop is None and isinstance(part.start, int) and part.start > 0 else []


def moved(end: Any) -> list[int]:
    """An end of a slice, one further on either side."""
    return [end - 1, end + 1] if isinstance(end, int) else []


def shown(value: Any) -> str:
    """As Python has it; a slice as in brackets."""
    if isinstance(value, slice):
        return ":".join("" if each is None else str(each) for each in (value.start, value.stop))
    if isinstance(value, tuple) and any(isinstance(each, slice) for each in value):
        return f"[{', '.join(map(shown, value))}]"
    return "..." if value is ... else repr(value)
