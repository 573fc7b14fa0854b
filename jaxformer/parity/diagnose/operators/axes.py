"""Mutations of the axes along which an operation goes: of reductions, rolls and norms; other orders of norms."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.mutation import Change, Proposal
from jaxformer.parity.diagnose.operators.functions import NORMALIZED, Norm
from jaxformer.parity.diagnose.trace import Op

REDUCING = {"mean", "sum", "amax", "amin", "max", "min", "var", "std", "norm", "logsumexp", "argmax", "argmin"}
ORDERS = {"one": 1, "infinity": float("inf")}
EPSILONS = {"layer_norm": 1e-5, "rms_norm": 0.0}
MOST_AXES, MOST_ROWS = 4, 4096
Axes = tuple[int, ...]

OVER = Change("axes.reduced", "reduces over {axes:axes}, not over {was:axes}")
MEAN_THEN_LARGEST = Change("axes.mean_then_largest", "takes the mean over axis {first} and the maximum over axis {second}")
ROLLED = Change(
    "axes.rolled",
    {
        "backwards": "rolls the other way round",
        "first": "rolls the other way along its first axis",
        "last": "rolls the other way along its last axis",
        "exchanged": "rolls with its shifts exchanged",
    },
)
ORDER = Change("axes.order", {"one": "takes the L1 norm (`ord=1`)", "infinity": "takes the largest absolute value (`ord=inf`)"})
ROWS = Change("axes.rows", "normalises {rows} rows together")
NORMED = Change("axes.normed", "normalises over {axes:axes}")


def reductions(op: Op) -> Iterator[Proposal]:
    """Over other axes; over one of two axes the mean, over the other the largest."""
    axes = axes_of(op)
    x = op.args[0] if axes else None
    if not isinstance(x, torch.Tensor) or not 1 < x.ndim <= MOST_AXES:
        return
    for many in range(1, x.ndim + 1):
        for other in itertools.combinations(range(x.ndim), many):
            if other != axes and any(x.shape[axis] > 1 for axis in set(other) ^ set(axes)):
                yield op.instead(OVER, partial(over, other), axes=other, was=axes)
    for first, second in itertools.permutations(axes) if op.name in ("mean", "amax") and len(axes) == 2 else ():
        yield op.instead(MEAN_THEN_LARGEST, partial(mean_then_largest, (first, second)), first=first, second=second)


def axes_of(op: Op) -> Axes:
    """Axes over which it goes, none of them negative; none where it does not reduce."""
    x = next(iter(op.args), None)
    if op.name not in REDUCING or not isinstance(x, torch.Tensor):
        return ()
    found = op.args[1] if len(op.args) > 1 else op.kwargs.get("dim", op.kwargs.get("axis"))
    found = range(x.ndim) if found is None else found if isinstance(found, (tuple, list)) else [found]
    return tuple(sorted(axis % x.ndim for axis in found)) if all(type(axis) is int for axis in found) else ()


def over(axes: Axes, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same function over other axes."""
    keyword = "axis" if "axis" in kwargs else "dim"
    keepdim = {"keepdim": args[2]} if len(args) > 2 and type(args[2]) is bool else {}
    return function(args[0], **(kwargs | keepdim | {keyword: axes if len(axes) > 1 else next(iter(axes))}))


def mean_then_largest(axes: Axes, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """The mean over the first axis, the largest along the second."""
    keep = kwargs.get("keepdim", True in args[2:])
    found = args[0].mean(axes[0], keepdim=True).amax(axes[1], keepdim=True)
    return found if keep else found.squeeze(axes)


def rolls(op: Op) -> Iterator[Proposal]:
    """The other way, by other numbers along the axes."""
    if op.name != "roll":
        return
    given = op.args[1] if len(op.args) > 1 else op.kwargs["shifts"]
    shifts = [*given] if isinstance(given, (tuple, list)) else [given]
    others = {"backwards": [-each for each in shifts]}
    if len(shifts) > 1:
        first, last = [-shifts[0], *shifts[1:]], [*shifts[:-1], -shifts[-1]]
        others |= {"first": first, "last": last, "exchanged": shifts[::-1]}
    for how, other in others.items():
        if other != shifts:
            yield op.instead(ROLLED, partial(rolled, tuple(other)), how=how)


def rolled(shifts: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """A roll by other numbers."""
    axes = args[2] if len(args) > 2 else kwargs.get("dims")
    return torch.roll(args[0], shifts, (axes,) if type(axes) is int else axes) if axes is not None else args[0].roll(shifts[0])


def orders(op: Op) -> Iterator[Proposal]:
    """A norm of order 1, or of the largest entry, where torch's is of order 2 without a word."""
    name = {"norm": "p", "vector_norm": "ord"}.get(op.name)
    for how, order in ORDERS.items() if name and op.kwargs.get(name) in (None, "fro") and len(op.args) == 1 else ():
        yield op.instead(ORDER, lambda f, a, k, n, other={name: order}: f(*a, **(k | other)), how=how)


def rows_together(op: Op) -> Iterator[Proposal]:
    """A group norm of `B * T` rows, over the rows of each B."""
    rows = len(op.args[0]) if op.name == "group_norm" else 0
    for many in range(2, rows) if rows <= MOST_ROWS else ():
        if rows % many == 0:
            yield op.instead(ROWS, partial(by_blocks, many), rows=many)


def by_blocks(many: int, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """So many rows are one, with more positions."""
    x = args[0]
    blocks = x.reshape(-1, many, *x.shape[1:]).transpose(1, 2)
    y = function(blocks.contiguous(), *args[1:], **kwargs)
    return y.transpose(1, 2).reshape(x.shape)


def other_axes(op: Op) -> Iterator[Proposal]:
    """A layer norm over other axes than the last."""
    x = next(iter(op.args), None)
    if op.name not in NORMALIZED or not isinstance(x, torch.Tensor) or not 2 < x.ndim < 5:
        return
    given = [each for each in (*op.args, *op.kwargs.values()) if type(each) is float]
    for axes in itertools.chain(*(itertools.combinations(range(x.ndim), many) for many in (1, 2))):
        if axes != (x.ndim - 1,):
            norm = Norm(axes=axes, epsilon=next(iter(given), EPSILONS[op.name]))
            yield op.instead(NORMED, norm, axes=axes)
