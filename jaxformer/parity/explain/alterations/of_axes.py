"""What may be otherwise in the axes along which an operation goes: of what is added up or made one, of what is rolled."""

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Operation

REDUCING = {"mean", "sum", "amax", "amin", "max", "min", "var", "std", "norm", "logsumexp", "argmax", "argmin"}
MOST_AXES = 4
Axes = tuple[int, ...]


def reductions(operation: Operation) -> Iterator[Alteration]:
    """Over other axes; over one of two axes the mean, over the other the largest."""
    axes = axes_of(operation)
    x = operation.args[0] if axes else None
    if not isinstance(x, torch.Tensor) or not 1 < x.ndim <= MOST_AXES:
        return
    for many in range(1, x.ndim + 1):
        for other in itertools.combinations(range(x.ndim), many):
            if other != axes and any(x.shape[axis] > 1 for axis in set(other) ^ set(axes)):
                yield instead(operation, f"goes over {named(other)}, not over {named(axes)}", partial(over, other))
    if operation.name in ("mean", "amax") and len(axes) == 2:
        for first, second in itertools.permutations(axes):
            says = f"takes the mean of axis {first} and the largest along axis {second}"
            yield instead(operation, says, partial(mean_then_largest, (first, second)))


def axes_of(operation: Operation) -> Axes:
    """Over which it goes, none of them negative; none where it does not reduce."""
    x = next(iter(operation.args), None)
    if operation.name not in REDUCING or not isinstance(x, torch.Tensor):
        return ()
    found = operation.args[1] if len(operation.args) > 1 else operation.kwargs.get("dim", operation.kwargs.get("axis"))
    found = range(x.ndim) if found is None else [found] if type(found) is int else [*found]
    return tuple(sorted(axis % x.ndim for axis in found)) if all(type(axis) is int for axis in found) else ()


def named(axes: Axes) -> str:
    """'axis 1', 'axes 1 and 2'"""
    return f"ax{'es' if len(axes) > 1 else 'is'} {' and '.join(map(str, axes))}"


def over(axes: Axes, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same function over other axes."""
    keyword = "axis" if "axis" in kwargs else "dim"
    kwargs = {key: value for key, value in kwargs.items() if key != keyword}
    if len(args) > 2 and type(args[2]) is bool:
        kwargs |= {"keepdim": args[2]}
    several = axes if len(axes) > 1 else next(iter(axes))
    return function(args[0], **{keyword: several}, **kwargs)


def mean_then_largest(axes: Axes, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Of two axes."""
    keep = kwargs.get("keepdim", True in args[2:])
    found = args[0].mean(axes[0], keepdim=True).amax(axes[1], keepdim=True)
    return found if keep else found.squeeze(axes)


def rolls(operation: Operation) -> Iterator[Alteration]:
    """The other way, by other numbers along the axes."""
    if operation.name != "roll":
        return
    shifts = operation.args[1] if len(operation.args) > 1 else operation.kwargs["shifts"]
    several = [*shifts] if isinstance(shifts, (tuple, list)) else [shifts]
    others = {"the other way round": [-each for each in several], "the other way along its first axis": flipped(several, 0)}
    others |= {"the other way along its last axis": flipped(several, -1), "with its shifts exchanged": several[::-1]}
    for says, other in others.items():
        if other != several and not (len(several) == 1 and "along" in says):
            yield instead(operation, f"rolls {says}", partial(rolled, tuple(other)))


def flipped(numbers: list[int], at: int) -> list[int]:
    """With one of them negative."""
    found = [*numbers]
    found[at] = -found[at]
    return found


def rolled(shifts: tuple[int, ...], function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """By other numbers."""
    axes = args[2] if len(args) > 2 else kwargs.get("dims")
    return torch.roll(args[0], shifts, (axes,) if type(axes) is int else axes) if axes is not None else args[0].roll(shifts[0])


def orders(operation: Operation) -> Iterator[Alteration]:
    """A norm of order 1, or of the largest entry, where torch's is of order 2 without a word."""
    name = {"norm": "p", "vector_norm": "ord"}.get(operation.name)
    if name and operation.kwargs.get(name) in (None, "fro") and len(operation.args) == 1:
        for says, order in (("1", 1), ("infinity", float("inf"))):
            how = {name: order}
            yield instead(operation, f"has a norm of order {says}", lambda f, a, k, n, how=how: f(*a, **(k | how)))


KINDS = (reductions, rolls, orders)
