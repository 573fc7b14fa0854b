"""Mutations of one argument of an operation: another number, switch, size or part of an axis; none at all."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.calls import names_of
from jaxformer.parity.diagnose.mutation import Change, Free, Proposal
from jaxformer.parity.diagnose.operators.functions import COMPARING, is_real
from jaxformer.parity.diagnose.trace import Compute, Op

SMALL = 0.01
BESIDE = (0.99, 1.01)
"""How far a number is moved that may act in steps."""
NUMBER = Change("arguments.number", lambda args: NAMED if args["name"] else "has {value} for {was:.9g} there")
NAMED = "has {name} {value} for {was:.9g} there"
OTHER = Change("arguments.other", "has {other} for {was} there")
WITHOUT = Change("arguments.without", {"bias": "does so without the bias", "tensor": "does so without {at}"})


def proposals(op: Op) -> Iterator[Proposal]:
    """Another number, switch or word; a tensor left out."""
    for at, was in [*enumerate(op.args), *op.kwargs.items()]:
        if isinstance(was, float) and op.name in COMPARING:
            continue  # what is compared tells where the number acts: `thresholds`
        if isinstance(was, float):
            yield number(op, at, was)
        elif isinstance(was, torch.Tensor) and at not in (0, 1) and op.name != "where":
            yield op.instead(WITHOUT, with_argument(at, None), how="bias" if was.ndim == 1 else "tensor", at=at)
        else:
            for other in other_values(was, op.name):
                is_factor = type(other) is int and other != 0 and is_real(op)
                near = tuple(partial(op.rewrite, with_argument(at, c * other)) for c in BESIDE if is_factor)
                yield op.instead(OTHER, with_argument(at, other), near, other=shown(other), was=shown(was), at=at)
    if op.name == "scaled_dot_product_attention" and op.kwargs.get("scale") is None:
        yield number(op, "scale", op.args[0].shape[-1] ** -0.5)


def epsilons(op: Op) -> Iterator[Proposal]:
    """Another small number."""
    yield from (number(op, at, was) for at, was in enumerate(op.args) if isinstance(was, float) and 0 < was < SMALL)


def number(op: Op, at: int | str, was: float) -> Proposal:
    """Another number for an argument, solved for."""
    return op.solving(NUMBER, Free(was), partial(with_argument, at), was=was, at=at, name=name_of(op.function, at))


def name_of(function: Callable[..., Any], at: int | str) -> str:
    """The name of an argument; '' where torch has none for it."""
    if isinstance(at, str):
        return at
    try:
        return dict(enumerate(names_of(function))).get(at, "")
    except (TypeError, ValueError):  # written in C++
        return ""


def with_argument(at: int | str, other: Any) -> Compute:
    """The same function with another argument, by its position or name."""
    if isinstance(at, str):
        return lambda f, a, k, n: f(*a, **(k | {at: other}))
    return lambda f, a, k, n: f(*a[:at], other, *a[at + 1 :], **k)


def with_operand(i: int, change: Callable[[Any], Any], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same function of another operand."""
    return function(*args[:i], change(args[i]), *args[i + 1 :], **kwargs)


def other_values(value: Any, name: str) -> list[Any]:
    """Values that could stand there instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        near = [value - 1, value + 1]
        return [*{0: [-1], -1: [0]}.get(value, []), *near] if name == "getitem" else near
    if isinstance(value, slice):
        return [slice(*ends, value.step) for ends in other_ends(value.start, value.stop)]
    if type(value) in (tuple, list) and 0 < len(value) <= 4:
        items = list(value)
        one = [[*items[:i], other, *items[i + 1 :]] for i, each in enumerate(items) for other in other_values(each, name)]
        alike = len(items) > 1 and isinstance(items[0], int) and items.count(items[0]) == len(items)
        all_of_them = [[other] * len(items) for other in other_values(items[0], name)] if alike else []
        return [type(value)(each) for each in all_of_them + one]
    return []


def other_ends(start: Any, stop: Any) -> Iterator[tuple[Any, Any]]:
    """Other ends of a slice: one further on either side; as many left out at the other end."""
    yield from ((start + more, stop) for more in (-1, 1) if isinstance(start, int))
    yield from ((start, stop + more) for more in (-1, 1) if isinstance(stop, int))
    if start is None and isinstance(stop, int) and stop < 0:
        yield -stop, None
    if stop is None and isinstance(start, int) and start > 0:
        yield None, -start


def shown(value: Any) -> str:
    """As Python writes it; a slice as in brackets."""
    if isinstance(value, slice):
        return ":".join("" if each is None else str(each) for each in (value.start, value.stop))
    if isinstance(value, tuple) and any(isinstance(each, slice) for each in value):
        return f"[{', '.join(map(shown, value))}]"
    return "..." if value is ... else repr(value)
