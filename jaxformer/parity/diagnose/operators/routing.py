"""Mutations of the choice of the largest entries, as experts for tokens: how many, their order, equal entries, indices, an
expert's capacity."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.computes import Compute, behind, with_operand
from jaxformer.parity.diagnose.functions import is_real
from jaxformer.parity.diagnose.mutation import Change, Proposal
from jaxformer.parity.diagnose.trace import Op

CHOOSING = {"topk", "sort", "max", "min"}
FIRST = {"argmax", "argmin"}
SORTING = {"topk", "sort", "argsort"}
MOST_CAPACITIES = 48
REVERSED = Change("routing.reversed", "has the {what} chosen in the other order")
SORTED = Change("routing.sorted", "has the {what} chosen in the order of the places")
SMALLEST = Change("routing.smallest", "chooses the smallest")
MOVED = Change(
    "routing.moved",
    {
        "up": "has indices one too high, rolled around",
        "down": "has indices one too low, rolled around",
        "from_end": "has indices counted from the other end",
    },
)
LAST = Change("routing.last_of_equal", "chooses the last of several that are equal, not the first")
TIES = Change(
    "routing.ties",
    {"first": "has equal entries from the first to the last", "last": "has equal entries from the last to the first"},
    "has equal entries at {0} in an order of its own",
)
CAPACITY = Change(
    "routing.capacity",
    {
        "tokens": "takes at most {most} tokens an expert (a capacity), and drops the others",
        "choices": "takes at most {most} tokens an expert (a capacity), first choices first, and drops the others",
    },
)
Part = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""part(values or places, places) -> other values or places."""


def choices(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of each choice (`topk`, `sort`, `max`, `argmax`), the plain ones first."""
    for op in operations:
        yield from chosen(op)
        yield from ties(op)
        if op.name in FIRST:
            yield op.instead(LAST, last_of_equal)
    for op in operations:
        yield from capacities(op, operations)


def chosen(op: Op) -> Iterator[Proposal]:
    """Mutations of `topk`, `sort`, `max` and `min`: values or indices in another order, the smallest chosen, other indices."""
    if op.name not in CHOOSING or not isinstance(op.output, (tuple, list)) or len(op.output) != 2:
        return
    x, (values, places) = op.args[0], op.output
    if not x.ndim or not places.numel():
        return
    several = values.ndim == x.ndim and values.shape[-1] > 1
    for part, what in enumerate(("values", "places")) if several else ():
        yield op.instead(REVERSED, with_part(part, lambda x, places: x.flip(-1)), what=what)
        yield op.instead(SORTED, with_part(part, lambda x, places: x.gather(-1, places.argsort(-1))), what=what)
    yield op.instead(SMALLEST, behind(lambda both: type(both)((-both[0], both[1])), with_operand(0, torch.neg)))
    if int(places.max()) < (size := x.shape[-1]):
        moves: dict[str, Part] = {
            "up": lambda x, places: (x + 1) % size,
            "down": lambda x, places: (x - 1) % size,
            "from_end": lambda x, places: size - 1 - x,
        }
        for how, move in moves.items():
            yield op.instead(MOVED, with_part(1, move), how=how)


def ties(op: Op) -> Iterator[Proposal]:
    """Mutations of the order of equal entries in `sort`, `argsort` and `topk`."""
    if op.name not in SORTING or (given := sorting(op.function, op.args, op.kwargs)) is None:
        return
    x, axis, _ = given
    if x.ndim and not (x.sort(axis).values.diff(dim=axis) != 0).all():
        for how in ("first", "last"):
            yield op.instead(TIES, partial(with_ties, how), how=how)


def sorting(function: Any, args: Any, kwargs: Any) -> tuple[torch.Tensor, int, bool] | None:
    """Return the array that is sorted, its axis, and whether the largest come first; None for arguments of another form."""
    names = ("input", "k", "dim", "largest") if function.__name__ == "topk" else ("input", "dim", "descending")
    held: dict[str, Any] = dict(zip(names, args, strict=False)) | kwargs
    x, axis = held.get("input"), held.get("dim", -1)
    if not isinstance(x, torch.Tensor) or type(axis) is not int:
        return None
    return x, axis, bool(held.get("largest", True) if "k" in names else held.get("descending", False))


def with_ties(how: str, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a sort whose equal entries come from the first to the last, or from the last to the first."""
    output = function(*args, **kwargs)
    given = sorting(function, args, kwargs)
    assert given is not None
    x, axis, descending = given
    size = x.shape[axis]
    places = (x.flip(axis) if how == "last" else x).sort(dim=axis, descending=descending, stable=True).indices
    places = size - 1 - places if how == "last" else places
    if isinstance(output, torch.Tensor):
        return places
    return type(output)((output[0], places.narrow(axis, 0, output[1].shape[axis])))


def with_part(part: int, change: Part) -> Compute:
    """Compute values and places, with `change` applied to one of the two."""
    return behind(lambda both: type(both)([change(x, both[1]) if i == part else x for i, x in enumerate(both)]))


def last_of_equal(function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute the place of the last of several equal entries."""
    axis = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
    x = args[0].flatten() if axis is None else args[0]
    axis = 0 if axis is None else axis
    found = x.shape[axis] - 1 - function(x.flip(axis), axis)
    return found.unsqueeze(axis) if kwargs.get("keepdim") or True in args[2:] else found


def capacities(op: Op, operations: list[Op]) -> Iterator[Proposal]:
    """Mutations in which each expert has a capacity, a largest number of tokens; tokens beyond it get 0 from the expert."""
    if op.name != "topk" or len(op.runs) > 1 or not op.output[1].numel():
        return
    values, places = op.output
    later = [each for each in operations if is_real(each) and each.output.shape == values.shape and len(each.runs) == 1]
    by_choices = by_tokens(places.movedim(-1, 0)).movedim(0, -1)
    for how, numbers in (("tokens", by_tokens(places)), ("choices", by_choices)):
        loads = int(numbers.max())
        for most in range(loads - 1, max(0, loads - 1 - MOST_CAPACITIES), -1):
            kept = (numbers <= most).to(values.dtype)
            for each in later[-1:]:
                yield each.instead(CAPACITY, behind(lambda y, kept=kept: y * kept), how=how, most=most)
            yield op.instead(CAPACITY, with_part(0, lambda x, _, kept=kept: x * kept), how=how, most=most)


def by_tokens(places: torch.Tensor) -> torch.Tensor:
    """Number, from 1, of each choice among the choices of the same place so far."""
    hot = torch.nn.functional.one_hot(places.flatten())
    return (hot.cumsum(0) * hot).sum(-1).reshape(places.shape)
