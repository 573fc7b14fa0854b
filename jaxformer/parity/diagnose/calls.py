"""Calls of torch's functions: arguments in one form, however the user's code passes them, and checked where torch does not."""

import inspect
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import torch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional arguments, and keyword arguments."""
CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
NAMES = {f"conv{n}d": CONVOLUTION for n in (1, 2, 3)} | {f"conv_transpose{n}d": TRANSPOSED for n in (1, 2, 3)}
NAMES |= {
    "scaled_dot_product_attention": ("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    **{f"max_pool{n}d": ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode") for n in (1, 2, 3)},
    **{f"avg_pool{n}d": ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad") for n in (1, 2, 3)},
    **{f"adaptive_{kind}_pool{n}d": ("input", "output_size") for kind in ("avg", "max") for n in (1, 2, 3)},
    "linear": ("input", "weight", "bias"),
    **dict.fromkeys(("clamp", "clip"), ("input", "min", "max")),
}
"""Names of the arguments of functions that are written in C++, or whose Python signature is `*args, **kwargs`."""


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """Move required arguments to their positions: `linear(input=x, weight=w, bias=b)` becomes `linear(x, w, bias=b)`. Where
    some arguments are positional already, only tensors move, so that `softmax(x, dim=-1)` stays as it is."""
    if not kwargs:
        return args, kwargs
    is_named = not args
    for names in required(function):
        moved: list[Any] = []
        for name in names[len(args) :]:
            if name not in kwargs or not (is_named or holds_tensors(kwargs[name])):
                break
            moved.append(kwargs[name])
        if moved:
            taken = names[len(args) : len(args) + len(moved)]
            return (*args, *moved), {name: value for name, value in kwargs.items() if name not in taken}
    return args, kwargs


@cache
def required(function: Callable[..., Any]) -> tuple[tuple[str, ...], ...]:
    """Names of the leading arguments without a default, for each overload of a torch function; empty if they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C++: the operator's schemas name the arguments
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{getattr(function, '__name__', '')}")
        needed = [[a for a in schema.arguments if not a.has_default_value() and not a.kwarg_only] for schema in schemas]
        return tuple(tuple("input" if each.name == "self" else each.name for each in form) for form in needed)
    plain = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
    return (tuple(each.name for each in plain),)


def writes(function: Callable[..., Any]) -> bool:
    """True for a function that changes its first argument in place, as `mul_`, `__iadd__` and `__setitem__` do."""
    name = getattr(function, "__name__", "_")
    return (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__set"))


def holds_tensors(value: Any) -> bool:
    """True for a tensor, and for a list or tuple of tensors that is not empty."""
    several = isinstance(value, (tuple, list)) and len(value) > 0
    return isinstance(value, torch.Tensor) or (several and all(isinstance(each, torch.Tensor) for each in value))


def named(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the given arguments by their names; ValueError if torch's function has no names for them."""
    return dict(zip(names_of(function), args, strict=False)) | kwargs


@cache
def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's arguments, in their order; those of `clamp_` are those of `clamp`."""
    return NAMES.get(function.__name__.removesuffix("_")) or tuple(inspect.signature(function).parameters)


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def safe(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function; a recurrent one checks its packed sequence and initial states first, since torch does not.

    The check raises ValueError where their sizes do not fit.
    """
    if getattr(function, "__name__", "") not in RECURRENT:
        return function

    @wraps(function)
    def checked(x: Any, sizes: Any, *others: Any, **named: Any) -> Any:
        if isinstance(sizes, torch.Tensor) and not sizes.is_floating_point():
            check(x, sizes, *others[:3])
        return function(x, sizes, *others, **named)

    return checked


def check(x: torch.Tensor, sizes: torch.Tensor, states: Any, weights: Sequence[torch.Tensor], biases: bool) -> None:
    """Check the arguments of a recurrent layer on a packed sequence; ValueError where sizes do not fit.

    `x` has the rows of all steps, `sizes` the number of rows of each step, in descending order.
    """
    first = [states] if isinstance(states, torch.Tensor) else states
    layers, rows = len(weights) // (4 if biases else 2), int(sizes[0])
    if int(sizes.sum()) != len(x) or int(sizes.min()) < 1 or bool((sizes.diff() > 0).any()):
        raise ValueError(f"{sizes.tolist()} are no sizes of the batches of {len(x)} rows")
    if any(state.ndim != 3 or state.shape[:2] != (layers, rows) for state in first):
        raise ValueError(f"{[tuple(state.shape) for state in first]} are no states of {layers} layers and {rows} rows")
    if (x.shape[1], first[0].shape[2]) != (weights[0].shape[1], weights[1].shape[1]):
        raise ValueError(f"{x.shape[1]} inputs and {first[0].shape[2]} units are not what the weights have")


def of_reals(x: Any) -> bool:
    """True for a tensor of floats."""
    return isinstance(x, torch.Tensor) and x.is_floating_point()
