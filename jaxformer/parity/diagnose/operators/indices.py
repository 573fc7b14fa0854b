"""Mutations of integers in torch's code: rows that are looked up or added up, positions, roundings, overflow."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.computes import behind, with_argument, with_operand
from jaxformer.parity.diagnose.functions import MOVES
from jaxformer.parity.diagnose.modules import held
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose, words_of
from jaxformer.parity.diagnose.operators import reroute
from jaxformer.parity.diagnose.operators.positions import by_masks, other_ids, other_positions, other_targets, steps, worded
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.replays import replay_of
from jaxformer.parity.diagnose.trace import Op, Rewrite, same
from jaxformer.parity.trace.call_sites import CALL, ArrayKey
from jaxformer.parity.trace.reference import Reference

ROWS = Change("indices.rows", worded("looks up rows"), reroutes=True)
POSITIONS = Change("indices.positions", worded("has positions"), reroutes=True)
TARGETS = Change("indices.targets", worded("takes its integers"), "takes {0} as it is", reroutes=True)
INT8 = torch.iinfo(torch.int8).max
ROUNDINGS: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "half_up": ("rounds to the nearest whole number, halves up", lambda x: torch.floor(x + 0.5)),
    "half_even": ("rounds to the nearest whole number, halves to the even one", torch.round),
    "up": ("rounds up (`ceil`)", torch.ceil),
    "down": ("rounds down (`floor`)", torch.floor),
}
ROUNDED = Change("indices.rounded", words_of(ROUNDINGS))


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
        yield op.instead(change, with_operand(at, partial(with_ids, ids)), **way.args)


def counted(replay: Replay) -> Iterator[Proposal]:
    """Mutations of positions that are looked up: those of a mask's visible tokens."""
    for op in replay.operations:
        if len(op.runs) == 1 and (found := lookup(op)) and steps(ids := ids_of(op.args[found[0]]), ids.ndim - 1):
            for way, other in by_masks(replay, ids.shape[-1]):
                if other.min() >= 0 and other.max() < found[1] and ids.ndim <= other.ndim:
                    yield op.instead(ROWS, with_operand(found[0], partial(with_ids, other)), **way.args)


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


SEGMENTED = ("index_add", "scatter_add", "scatter_reduce", "index_reduce")
"""Functions that add up rows, or reduce them otherwise, by an index of their segments, the third argument."""
REDUCED = {
    "sum": "takes the sum of each segment",
    "mean": "takes the mean of each segment",
    "amax": "takes the largest of each segment",
    "amin": "takes the smallest of each segment",
}
REDUCTION = Change("indices.reduction", REDUCED)
INDEX = Change("indices.index", reroute.worded("reads VALUE for its index", reroute.VALUES), reroutes=True)
THIRD = {how: words.replace("{1}", "{2}") for how, words in reroute.VALUES.items()}
BY_SEGMENTS = Change(
    "indices.segments", reroute.worded("reads VALUE for the index of both", THIRD), "computes {0} and {1}", subjects=2
)
MOST_INDICES = 8
"""Largest number of arrays of integers that may be read for an index."""


def segments(replay: Replay) -> Iterator[Proposal]:
    """Mutations of rows that are reduced by segments, as messages are along the edges of a graph: another reduction; and
    another index, there, in a lookup, or in both where the rows of the segments are looked up again."""
    once = [op for op in replay.operations if len(op.runs) == 1]
    reduced = [op for op in once if op.name in SEGMENTED]
    for op in reduced:
        own = "sum" if op.name.endswith("add") else op.kwargs.get("reduce", op.args[-1])
        yield from (op.instead(REDUCTION, partial(by_segments, how), how=how) for how in REDUCED if how != own)
    given = [*reroute.given_in(replay), *reroute.parts_in(replay.listed), *reroute.made_in(replay.listed)]
    values = [value for value in given if is_whole(value.x)] if reduced else []
    for op in once if values else ():
        if (at := 2 if op in reduced else next(iter(lookup(op) or ()), None)) is None:
            continue
        others = [value for value in values if reroute.fits(ids_of(op.args[at]), value.x)]
        again = [each for each in once if op in reduced and looks_up_segments(each, op)]
        for value in others[:MOST_INDICES]:
            edit = with_operand(at, partial(with_ids, value.x))
            yield propose(INDEX, (op.target, *value.targets), partial(op.rewrite, edit), how=value.how, **value.args)
            for each in again:
                both = partial(Rewrite, {op.place: edit, each.place: with_argument(1, value.x)})
                yield propose(BY_SEGMENTS, (op.target, each.target, *value.targets), both, how=value.how, **value.args)


def looks_up_segments(op: Op, reduced: Op) -> bool:
    """True if an operation is `segments[index]`, by the index by which the segments were reduced."""
    return op.name == "getitem" and same(op.args[0], reduced.output) and same(op.args[1], reduced.args[2])


def by_segments(how: str, function: Any, args: Any, kwargs: Any, number: int) -> torch.Tensor:
    """Reduce rows in another way, as `index_add` does; the first array has the entries of segments without rows."""
    x, axis, index, rows = args[:4]
    if index.ndim < rows.ndim:
        index = index.view([-1 if i == axis % rows.ndim else 1 for i in range(rows.ndim)]).expand(rows.shape)
    return x.scatter_reduce(axis, index, rows, how, include_self=False)


def targets(replay: Replay) -> Iterator[Proposal]:
    """Mutations of the integers that a loss is given, wherever its code reads them."""
    for i, ids in enumerate(replay.call_inputs if replay.wanted.size <= 1 else ()):
        for way, other in other_targets(ids) if is_whole(ids) else ():
            yield propose(TARGETS, f"input {i} of the call", partial(held, ids, other), **way.args)


def roundings(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of how floats are rounded to integers."""
    for op in operations:
        x: Any = next(iter(op.args), None)
        if is_whole(op.output) and isinstance(x, torch.Tensor) and x.is_floating_point():
            for how, (_, function) in ROUNDINGS.items():
                yield op.instead(ROUNDED, with_operand(0, function), how=how)


PICKED = Change("indices.picked", "takes positions {jax}", "takes positions {torch} of the rows in {0}", reroutes=True)
SHOWN = 4


def picked(replay: Replay) -> Iterator[Proposal]:
    """Mutations of the position that is taken of each row, as in `states[rows, ends]`: those whose entries jax's array has."""
    jax = replay.compared.get(replay.place)
    if jax is None or jax.shape != replay.wanted.shape:
        return
    for op in (each for each in replay.operations if each.name == "getitem"):
        x, index = op.args[:2]
        pair = isinstance(index, tuple) and len(index) == 2 and all(map(is_whole, index))
        if pair and x.is_floating_point() and same(op.output, torch.from_numpy(replay.wanted)):
            rows, places = index
            apart = (x[rows] - torch.from_numpy(jax)[:, None]).abs().flatten(2).amax(-1)
            others = apart.argmin(1)
            words: dict[str, Any] = {"jax": listed(others), "torch": listed(places)}
            yield op.instead(PICKED, with_operand(1, lambda _, index=(rows, others): index), **words)


def listed(numbers: torch.Tensor) -> str:
    """Words for the first of some numbers: '3, 0, 4, 4, ...'."""
    return ", ".join([*map(str, numbers[:SHOWN].tolist()), *["..."] * (len(numbers) > SHOWN)])


NARROWED = Change("overflow.narrowed", "computes it in {type}, where it overflows", "computes {0} in int64")
TYPES = {
    "int8": (-(2**7), 8),
    "uint8": (0, 8),
    "int16": (-(2**15), 16),
    "uint16": (0, 16),
    "int32": (-(2**31), 32),
    "uint32": (0, 32),
}
"""Least number and bits of narrow types."""


def overflows(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations in which integers overflow a narrow type: all that are beyond int32, or those of one operation."""
    large = too_large(operations)
    for name in ("int32", "uint32") if large else ():
        yield propose(NARROWED, label(large), partial(Rewrite, {op.place: behind(narrowed(name)) for op in large}), type=name)
    around = {op.place: with_operand(found[0], partial(wrapped, found[1])) for op in operations if (found := lookup(op))}
    for op in operations:
        for name in TYPES if op.name not in MOVES and largest(op) > INT8 else ():
            if not same(narrowed(name)(op.output), op.output):
                edits = partial(Rewrite, around | {op.place: behind(narrowed(name))})
                yield propose(NARROWED, op.target, edits, type=name)


def wrapped(rows: int, index: Any) -> Any:
    """Return an index whose negative ids count from the end, as JAX reads them."""
    ids = ids_of(index)
    return with_ids(torch.where(ids < 0, ids + rows, ids), index) if is_whole(ids) else index


def narrowed(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function that keeps the last bits of integers, as a narrow type does."""
    least, bits = TYPES[name]
    return lambda x: (x - least) % 2**bits + least


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
