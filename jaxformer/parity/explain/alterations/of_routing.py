"""What may be otherwise in how the largest are chosen, as experts are for tokens: their order, their numbers, and how many
tokens an expert takes."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead, is_real
from jaxformer.parity.explain.alterations.operations import Operation

CHOOSING = {"topk", "sort", "max", "min"}
FIRST = {"argmax", "argmin"}
MOST_CAPACITIES = 48
Change = Callable[[torch.Tensor], torch.Tensor]


def alterations_of(operations: list[Operation]) -> Iterator[Alteration]:
    """The plain ones first."""
    for operation in operations:
        yield from chosen(operation)
        yield from last_of_equal(operation)
    for operation in operations:
        yield from capacities(operation, operations)


def chosen(operation: Operation) -> Iterator[Alteration]:
    """The numbers of those that are chosen, and what is chosen, in other orders."""
    if operation.name not in CHOOSING or not isinstance(operation.output, (tuple, list)) or len(operation.output) != 2:
        return
    values, ids = operation.output
    several = values.ndim == operation.args[0].ndim and values.shape[-1] > 1
    for part, what in ((0, "values"), (1, "places")) if several else ():
        yield instead(operation, f"has its {what} in the other order", partial(with_part, part, lambda x: x.flip(-1)))
        says = f"has its {what} in the order of the places"
        yield instead(operation, says, partial(in_order_of_places, part))
    yield instead(operation, "takes the smallest", smallest)
    size = operation.args[0].shape[-1]
    if int(ids.max()) < size:
        for says, change in (
            ("one too high, the last for the first", lambda x: (x + 1) % size),
            ("one too low, the first for the last", lambda x: (x - 1) % size),
            ("counted from the other end", lambda x: size - 1 - x),
        ):
            yield instead(operation, f"has its places {says}", partial(with_part, 1, change))


def smallest(function: Any, args: Any, kwargs: Any, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the least values."""
    values, ids = function(-args[0], *args[1:], **kwargs)
    return -values, ids


def with_part(part: int, change: Change, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """With its values or its places changed."""
    values, ids = function(*args, **kwargs)
    return (change(values), ids) if part == 0 else (values, change(ids))


def in_order_of_places(part: int, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Values or places as they come, the other as torch has it."""
    values, ids = function(*args, **kwargs)
    order = ids.argsort(-1)
    return (values.gather(-1, order), ids) if part == 0 else (values, ids.gather(-1, order))


def last_of_equal(operation: Operation) -> Iterator[Alteration]:
    """The last of several that are equally large."""
    if operation.name in FIRST:
        yield instead(operation, "takes the last of several that are equal", from_the_end)


def from_the_end(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """The place of the last one."""
    axis = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
    x = args[0].flatten() if axis is None else args[0]
    axis = 0 if axis is None else axis
    found = x.shape[axis] - 1 - function(x.flip(axis), axis)
    return found.unsqueeze(axis) if kwargs.get("keepdim") or True in args[2:] else found


def capacities(operation: Operation, operations: list[Operation]) -> Iterator[Alteration]:
    """At most so many tokens for each expert; those behind them get 0 from it."""
    if operation.name != "topk" or len(operation.runs) > 1:
        return
    values, ids = operation.output
    behind = [each for each in operations if is_real(each) and each.output.shape == values.shape and len(each.runs) == 1]
    for says, places in (("", by_tokens(ids)), (", first choices first", by_choices(ids))):
        loads = int(places.max())
        for most in range(loads - 1, max(0, loads - 1 - MOST_CAPACITIES), -1):
            kept = (places <= most).to(values.dtype)
            said = f"takes {most} for each place at most, as a capacity does{says}"
            for each in behind[-1:]:
                yield instead(each, said, lambda f, a, k, n, kept=kept: f(*a, **k) * kept)
            weighed = partial(with_part, 0, lambda x, kept=kept: x * kept)
            yield instead(operation, said, weighed)


def by_tokens(ids: torch.Tensor) -> torch.Tensor:
    """The how-many-th each choice is of those that chose the same."""
    hot = torch.nn.functional.one_hot(ids.flatten())
    return (hot.cumsum(0) * hot).sum(-1).reshape(ids.shape)


def by_choices(ids: torch.Tensor) -> torch.Tensor:
    """The same, all first choices before the second ones."""
    return by_tokens(ids.movedim(-1, 0)).movedim(0, -1)
