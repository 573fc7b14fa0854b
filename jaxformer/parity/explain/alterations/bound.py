"""The arguments of torch's functions in one form, however the user's code writes the call."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from jaxformer.parity.explain.alterations.rerun import Arguments


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
    """True for a tensor, and for a list or tuple of tensors."""
    several = isinstance(value, (tuple, list)) and len(value) > 0
    return isinstance(value, torch.Tensor) or (several and all(isinstance(each, torch.Tensor) for each in value))
