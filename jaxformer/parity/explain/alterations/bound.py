"""The arguments of torch's functions in one form, however the user's code writes the call."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The same call with the arguments that it requires by position: `linear(input=x, weight=w, bias=b)` is
    `linear(x, w, bias=b)`. Beside arguments by position only tensors move, so that `softmax(x, dim=-1)` stays as it is."""
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


@functools.cache
def required(function: Callable[..., Any]) -> tuple[tuple[str, ...], ...]:
    """Names of the first arguments without a default, of each form of a function of torch's; none where they are not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C++, where schemas have them
        schemas = torch._C._jit_get_schemas_for_operator(f"aten::{getattr(function, '__name__', '')}")
        needed = [[a for a in schema.arguments if not a.has_default_value() and not a.kwarg_only] for schema in schemas]
        return tuple(tuple("input" if each.name == "self" else each.name for each in form) for form in needed)
    plain = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD and each.default is each.empty]
    return (tuple(each.name for each in plain),)


def holds_tensors(value: Any) -> bool:
    """Whether it is a tensor, or several."""
    several = isinstance(value, (tuple, list)) and len(value) > 0
    return isinstance(value, torch.Tensor) or (several and all(isinstance(each, torch.Tensor) for each in value))
