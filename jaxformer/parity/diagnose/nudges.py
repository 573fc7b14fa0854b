"""What is computed, a little off: where that gives as much, numbers do not tell what torch's code does there."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from jaxformer.parity.numerics.metrics import HUGE

Compute = Callable[..., Any]
"""compute(function, args, kwargs, number) -> the output."""


def of_reals(x: Any) -> bool:
    """Whether it is a tensor of real numbers."""
    return isinstance(x, torch.Tensor) and x.is_floating_point()


def a_little_more(compute: Compute, part: float, function: Any, args: Any, kwargs: Any, number: int) -> Any:
    """What is computed with every entry a little off, by parts that differ, or, for whole numbers made of real ones, with each
    of these a tenth off; TypeError where nothing is real."""
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
    """Each entry a tenth off, to the side of the part, but whole numbers."""
    return torch.where(x == x.round(), x, x + math.copysign(0.1, part))


def more(x: torch.Tensor, part: float) -> torch.Tensor:
    """Each entry by another part of it, but what hides a score."""
    parts = (1 + part * (2 + torch.cos(torch.arange(x.numel(), dtype=x.dtype)))).view(x.shape)
    return torch.where(x.abs() < HUGE, x * parts, x)
