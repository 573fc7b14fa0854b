"""Functions that an operation may compute instead: an operand, a constant, a function of its operands, arguments or output; and
nudges, small pushes of a mutated value. A candidate that still gives jax's array after one is ambiguous."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.calls import named, of_reals
from jaxformer.parity.numerics.metrics import HUGE

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


def of_both(other: Callable[[Any, Any], Any]) -> Compute:
    """Compute `other` of the first operand and the output."""
    return lambda f, a, k, n: other(a[0], f(*a, **k))


def plainly(function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Call the function as torch does."""
    return function(*args, **kwargs)


def behind(other: Function, first: Compute = plainly) -> Compute:
    """Apply `other` to the output, or to what `first` computes."""
    return lambda *call: other(first(*call))


def noting(gave: list[torch.Tensor]) -> Compute:
    """Compute the tensor as torch does, and keep it as the only entry of `gave`, for an operation that comes later."""

    def compute(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
        gave[:] = [function(*args, **kwargs)]
        return gave[0].clone()

    return compute


def with_operand(i: int, change: Function) -> Compute:
    """Call the function with `change` applied to positional argument `i`."""
    return lambda f, a, k, n: f(*a[:i], change(a[i]), *a[i + 1 :], **k)


def with_argument(at: int | str, other: Any) -> Compute:
    """Call the function with another value of one argument, given by its position or name."""
    return (lambda f, a, k, n: f(*a, **(k | {at: other}))) if isinstance(at, str) else with_operand(at, lambda _: other)


def with_named(**others: Any) -> Compute:
    """Call the function with other values of some arguments, by their names."""
    return lambda f, a, k, n: f(**named(f, a, k) | others)


def in_run(only: int | None, compute: Compute) -> Compute:
    """Compute in one run alone; None: in every run."""
    return compute if only is None else lambda f, a, k, n: compute(f, a, k, n) if n == only else f(*a, **k)


def a_little_more(compute: Compute, part: float, function: Any, args: Any, kwargs: Any, number: int) -> Any:
    """Compute an operation, and push every float of the output by its own relative amount, about `part`.

    For integers that are made of floats, push each float operand by a tenth instead. TypeError if nothing can be pushed.
    """
    x = compute(function, args, kwargs, number)
    parts = list(x) if isinstance(x, (tuple, list)) else [x]
    if not any(map(of_reals, parts)):
        if isinstance(x, torch.Tensor) and x.dtype != torch.bool and any(map(of_reals, args)):
            return compute(function, tuple(tenth_more(each, part) if of_reals(each) else each for each in args), kwargs, number)
        raise TypeError("only real numbers may be a little off")
    off = [more(each, part) if of_reals(each) else each for each in parts]
    if all(map(partial(torch.allclose, rtol=0, atol=0, equal_nan=True), off, parts)):
        raise TypeError("zeros and infinities are never a little off")
    return off if isinstance(x, (tuple, list)) else off[0]


def tenth_more(x: torch.Tensor, part: float) -> torch.Tensor:
    """Push each entry that is no integer by 0.1, in the direction of the sign of `part`."""
    return torch.where(x == x.round(), x, x + math.copysign(0.1, part))


def more(x: torch.Tensor, part: float) -> torch.Tensor:
    """Push each entry by its own relative amount, 1 to 3 times `part`; numbers as large as a mask's stay."""
    parts = (1 + part * (2 + torch.cos(torch.arange(x.numel(), dtype=x.dtype)))).view(x.shape)
    return torch.where(x.abs() < HUGE, x * parts, x)
