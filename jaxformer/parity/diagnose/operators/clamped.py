"""Mutations of windows that reach beyond the end: torch pads first, `jax.lax.dynamic_slice` moves the window back inside."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.diagnose.mutation import Change, Proposal, propose
from jaxformer.parity.diagnose.trace import Op, same

PADDING = ("pad", "cat", "concat")
CLAMPED = Change(
    "clamped.window",
    "moves windows that reach beyond the end back inside, as `jax.lax.dynamic_slice` does",
    "reads windows of padded entries at {0}",
)


class Padded(NamedTuple):
    """Array inside a longer one."""

    axis: int
    first: int
    """Number of entries before it."""


def proposals(operations: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations of slices and of `unfold` of a padded array."""
    paddings = [op for op in operations if op.name in PADDING and len(op.runs) == 1]
    for op in operations if paddings else ():
        for pad in paddings if op.name in ("getitem", "unfold") and op.args else ():
            x, y = unpadded(pad.args), pad.output
            found = padded(x, y) if same(y, op.args[0]) else None
            if found and reaches_beyond(op, x.shape[found.axis], found):
                edit = partial(op.rewrite, partial(clamped, x, found))
                yield propose(CLAMPED, (op.target, pad.target), edit)


def unpadded(args: Any) -> torch.Tensor:
    """Return the array that is padded, or the largest of those that are joined."""
    first = args[0]
    return first if isinstance(first, torch.Tensor) else max(first, key=torch.Tensor.numel)


def padded(x: torch.Tensor, y: torch.Tensor) -> Padded | None:
    """Find where the array lies in the padded one; None if it is padded along no axis, or along several."""
    axes = [i for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=False)) if a != b] if x.ndim == y.ndim else []
    if len(axes) != 1:
        return None
    (axis,) = axes
    size = x.shape[axis]
    places = (i for i in range(y.shape[axis] - size + 1) if torch.equal(y.narrow(axis, i, size), x))
    first = next(places, None)
    return None if first is None else Padded(axis, first)


def reaches_beyond(op: Op, size: int, found: Padded) -> bool:
    """True if a window has padded entries, and is not larger than the array."""
    windows = [window for run in op.runs if (window := window_of(op.name, run.args, found.axis))]
    inside = all(0 <= start - found.first <= size - many for starts, many in windows for start in starts)
    return bool(windows) and not inside and all(0 < many <= size for _, many in windows)


def window_of(name: str, args: Any, axis: int) -> tuple[list[int], int] | None:
    """Return the starts of windows along an axis, and their length; None if the axis is not cut into windows."""
    x = args[0]
    if name == "unfold":
        if len(args) < 4 or args[1] % x.ndim != axis:
            return None
        return [*range(0, x.shape[axis] - args[2] + 1, args[3])], args[2]
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if len(index) <= axis or not all(isinstance(each, slice) for each in index[: axis + 1]) or index[axis].step is not None:
        return None
    start, stop, _ = index[axis].indices(x.shape[axis])
    return [start], stop - start


def clamped(x: torch.Tensor, found: Padded, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Read windows from the array itself, from the nearest start that lets them end inside."""
    axis, size = found.axis, x.shape[found.axis]
    if (window := window_of(function.__name__.strip("_"), args, axis)) is None:
        return function(*args, **kwargs)
    starts, many = window
    from_end = (start - found.first + size * (start < found.first) for start in starts)
    parts = [x.narrow(axis, min(start, size - many), many) for start in from_end]
    if function.__name__ == "unfold":
        return torch.stack(parts, axis).movedim(axis + 1, -1)
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    return parts[0][(*index[:axis], slice(None), *index[axis + 1 :])]
