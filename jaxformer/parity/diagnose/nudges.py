"""Nudges: small pushes of a mutated value. A candidate that still gives jax's array after one is ambiguous."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from jaxformer.parity.numerics.metrics import HUGE

Compute = Callable[..., Any]
"""Function `compute(function, args, kwargs, number)` that returns the output of an operation in its run of this number."""


def of_reals(x: Any) -> bool:
    """True for a tensor of floats."""
    return isinstance(x, torch.Tensor) and x.is_floating_point()


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
