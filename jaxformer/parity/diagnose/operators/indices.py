"""Mutations of integers in torch's code: rows that are looked up, positions, roundings, overflow of 32 bits; and the choice of
the largest entries, as experts for tokens: order, indices, an expert's capacity."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.evidence import replay_of
from jaxformer.parity.diagnose.functions import is_real
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose
from jaxformer.parity.diagnose.operators.arguments import with_operand
from jaxformer.parity.diagnose.operators.positions import other_ids, other_positions, worded
from jaxformer.parity.diagnose.trace import Op, Rewrite
from jaxformer.parity.trace.call_sites import CALL, ArrayKey
from jaxformer.parity.trace.reference import Reference

ROWS = Change("indices.rows", worded("looks up rows"), reroutes=True)
POSITIONS = Change("indices.positions", worded("has positions"), reroutes=True)
ROUNDED = Change(
    "indices.rounded",
    {
        "half_up": "rounds to the nearest whole number, halves up",
        "half_even": "rounds to the nearest whole number, halves to the even one",
        "up": "rounds up (`ceil`)",
        "down": "rounds down (`floor`)",
    },
)
ROUNDINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "half_up": lambda x: torch.floor(x + 0.5),
    "half_even": torch.round,
    "up": torch.ceil,
    "down": torch.floor,
}


def proposals(op: Op) -> Iterator[Proposal]:
    """Mutations of the rows of a lookup, or of positions that become floats."""
    if len(op.runs) > 1:
        return
    if found := lookup(op):
        at, rows = found
        change, others = ROWS, other_ids(ids_of(op.args[at]), rows)
    elif makes_floats(op):
        at, change, others = 0, POSITIONS, other_positions(op.args[0])
    else:
        return
    for way, ids in others:
        yield op.instead(change, partial(with_operand, at, partial(with_ids, ids)), **way.args)


def lookup(op: Op) -> tuple[int, int] | None:
    """Position of the ids among the arguments of `table[ids]`, an embedding or `index_select`, and the table's number of rows;
    None for other operations."""
    args: tuple[Any, ...] = (*op.args, None, None, None)
    first, second, third = args[:3]
    if op.name == "embedding" and is_whole(first):
        return 0, len(second)
    if op.name == "index_select" and is_whole(third):
        return 2, first.shape[second]
    is_table = op.name == "getitem" and isinstance(first, torch.Tensor) and first.is_floating_point()
    return (1, len(first)) if is_table and is_whole(ids_of(second)) else None


def ids_of(index: Any) -> Any:
    """Ids of an index: its first entry; the whole index where another entry has ids too."""
    first, *others = index if isinstance(index, tuple) and index else (index,)
    return index if any(map(is_whole, others)) else first


def with_ids(ids: torch.Tensor, index: Any) -> Any:
    """Return the index with other ids."""
    return (ids, *index[1:]) if isinstance(index, tuple) else ids


def makes_floats(op: Op) -> bool:
    """True if an operation converts integers to floats of the same shape."""
    x: Any = next(iter(op.args), None)
    floats = isinstance(op.output, torch.Tensor) and op.output.is_floating_point()
    return floats and is_whole(x) and x.shape == op.output.shape


def is_whole(x: Any) -> bool:
    """True for a tensor of several integers."""
    return isinstance(x, torch.Tensor) and x.dtype in (torch.int64, torch.int32) and x.numel() > 1


def roundings(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of how floats are rounded to integers."""
    for op in operations:
        x: Any = next(iter(op.args), None)
        if is_whole(op.output) and isinstance(x, torch.Tensor) and x.is_floating_point():
            for how, function in ROUNDINGS.items():
                yield op.instead(ROUNDED, partial(with_operand, 0, function), how=how)


NARROWED = Change("overflow.narrowed", "computes it in {type}, where it overflows", "computes {0} in int64")
TYPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int32": lambda x: x.to(torch.int32).to(torch.int64),
    "uint32": lambda x: x & (2**32 - 1),
}
"""Functions that keep the last 32 bits, signed and unsigned."""


def overflows(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations in which all integers beyond int32 overflow."""
    large = too_large(operations)
    for name, narrow in TYPES.items() if large else ():
        rewritten = {op.place: lambda f, a, k, n, narrow=narrow: narrow(f(*a, **k)) for op in large}
        yield propose(NARROWED, label(large), partial(Rewrite, rewritten), type=name)


def whole_numbers_beyond(reference: Reference) -> str:
    """Message on integers beyond int32 in torch's code, or ''. It reads '; torch computes `ids * 1000003` (hash.py:8): up to
    4.9e+10, too large for int32 ...'."""
    replay = replay_of(reference, CALL, ArrayKey(CALL, "output", 0), frozenset(), reference.output)
    if not (large := too_large(replay.listed if replay else [])):
        return ""
    most = max(map(largest, large))
    return f"; torch computes {label(large)}: up to {most:.1e}, too large for int32, which is JAX's type for whole numbers"


def label(large: list[Op]) -> str:
    """Label of the first operation, with the number of the others."""
    return large[0].target.label + (f" and {len(large) - 1} more" if len(large) > 1 else "")


def too_large(operations: list[Op]) -> list[Op]:
    """Operations with integers beyond int32."""
    return [op for op in operations if largest(op) > torch.iinfo(torch.int32).max]


def largest(op: Op) -> int:
    """Largest absolute value in the int64 outputs of an operation; 0 if it has none."""
    outputs = [run.output for run in op.runs]
    whole = [x for x in outputs if isinstance(x, torch.Tensor) and x.dtype == torch.int64 and x.numel()]
    return max((int(x.double().abs().max()) for x in whole), default=0)


CHOOSING = {"topk", "sort", "max", "min"}
FIRST = {"argmax", "argmin"}
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
        yield op.instead(REVERSED, partial(with_part, part, lambda x, places: x.flip(-1)), what=what)
        yield op.instead(SORTED, partial(with_part, part, lambda x, places: x.gather(-1, places.argsort(-1))), what=what)
    yield op.instead(SMALLEST, smallest)
    if int(places.max()) < (size := x.shape[-1]):
        moves: dict[str, Part] = {
            "up": lambda x, places: (x + 1) % size,
            "down": lambda x, places: (x - 1) % size,
            "from_end": lambda x, places: size - 1 - x,
        }
        for how, move in moves.items():
            yield op.instead(MOVED, partial(with_part, 1, move), how=how)


def smallest(function: Any, args: Any, kwargs: Any, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the smallest values, and their places."""
    values, places = function(-args[0], *args[1:], **kwargs)
    return -values, places


def with_part(part: int, change: Part, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute values and places, with `change` applied to one of the two."""
    values, places = function(*args, **kwargs)
    return (values, change(places, places)) if part else (change(values, places), places)


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
    behind = [each for each in operations if is_real(each) and each.output.shape == values.shape and len(each.runs) == 1]
    by_choices = by_tokens(places.movedim(-1, 0)).movedim(0, -1)
    for how, numbers in (("tokens", by_tokens(places)), ("choices", by_choices)):
        loads = int(numbers.max())
        for most in range(loads - 1, max(0, loads - 1 - MOST_CAPACITIES), -1):
            kept = (numbers <= most).to(values.dtype)
            for each in behind[-1:]:
                yield each.instead(CAPACITY, lambda f, a, k, n, kept=kept: f(*a, **k) * kept, how=how, most=most)
            yield op.instead(CAPACITY, partial(with_part, 0, lambda x, _, kept=kept: x * kept), how=how, most=most)


def by_tokens(places: torch.Tensor) -> torch.Tensor:
    """Number, from 1, of each choice among the choices of the same place so far."""
    hot = torch.nn.functional.one_hot(places.flatten())
    return (hot.cumsum(0) * hot).sum(-1).reshape(places.shape)
