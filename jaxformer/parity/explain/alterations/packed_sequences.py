"""torch's recurrent functions on packed sequences: they do not check what they are given, and read memory of others."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; ValueError where a packed sequence, or the state that it begins with, has other sizes."""
    if getattr(function, "__name__", "") not in RECURRENT:
        return function

    @wraps(function)
    def checked(x: Any, sizes: Any, *others: Any, **named: Any) -> Any:
        if isinstance(sizes, torch.Tensor) and not sizes.is_floating_point():
            check(x, sizes, *others[:3])
        return function(x, sizes, *others, **named)

    return checked


def check(x: torch.Tensor, sizes: torch.Tensor, states: Any, weights: Sequence[torch.Tensor], biases: bool) -> None:
    """`x` has the rows of all steps, `sizes` how many each step has, the largest first."""
    first = [states] if isinstance(states, torch.Tensor) else states
    layers, rows = len(weights) // (4 if biases else 2), int(sizes[0])
    if int(sizes.sum()) != len(x) or int(sizes.min()) < 1 or bool((sizes.diff() > 0).any()):
        raise ValueError(f"{sizes.tolist()} are no sizes of the batches of {len(x)} rows")
    if any(state.ndim != 3 or state.shape[:2] != (layers, rows) for state in first):
        raise ValueError(f"{[tuple(state.shape) for state in first]} are no states of {layers} layers and {rows} rows")
    if (x.shape[1], first[0].shape[2]) != (weights[0].shape[1], weights[1].shape[1]):
        raise ValueError(f"{x.shape[1]} inputs and {first[0].shape[2]} units are not what the weights have")
