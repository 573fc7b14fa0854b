"""Functions that an operation may compute instead: an operand, a constant, a function of its operands, arguments or output."""

from collections.abc import Callable
from typing import Any

import torch

Compute = Callable[..., Any]
"""Function `compute(function, args, kwargs, number)` that returns the output of an operation in its run of this number."""
Function = Callable[[Any], Any]
JOINING = {"add", "mul", "sub", "div", "truediv", "maximum", "minimum", "and", "or", "logical_and", "logical_or"}
"""Elementwise operations of two tensors."""


def gives(output: torch.Tensor) -> Compute:
    """Give a copy of a tensor, whatever the operation is given."""
    return lambda f, a, k, n: output.clone()


def operand(i: int) -> Compute:
    """Give operand `i`, which leaves the operation out; of elementwise operations, broadcast to the shape of the output."""

    def compute(function: Any, args: Any, kwargs: Any, n: int) -> Any:
        shapes = [each.shape for each in args if isinstance(each, torch.Tensor)]
        return args[i].expand(torch.broadcast_shapes(*shapes)) if function.__name__.strip("_") in JOINING else args[i]

    return compute


def of_first(other: Callable[..., Any], many: int = 1) -> Compute:
    """Compute `other` of the first operand, or of the first `many`."""
    return lambda f, a, k, n: other(*a[:many])


def of_all(other: Callable[..., Any]) -> Compute:
    """Compute `other` of all arguments."""
    return lambda f, a, k, n: other(*a, **k)


def behind(other: Function) -> Compute:
    """Apply `other` to the output."""
    return lambda f, a, k, n: other(f(*a, **k))


def with_operand(i: int, change: Function) -> Compute:
    """Call the function with `change` applied to positional argument `i`."""
    return lambda f, a, k, n: f(*a[:i], change(a[i]), *a[i + 1 :], **k)


def with_argument(at: int | str, other: Any) -> Compute:
    """Call the function with another value of one argument, given by its position or name."""
    return (lambda f, a, k, n: f(*a, **(k | {at: other}))) if isinstance(at, str) else with_operand(at, lambda _: other)


def in_run(only: int | None, compute: Compute) -> Compute:
    """Compute in one run alone; None: in every run."""
    return compute if only is None else lambda f, a, k, n: compute(f, a, k, n) if n == only else f(*a, **k)
