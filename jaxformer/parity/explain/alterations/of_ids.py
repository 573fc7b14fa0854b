"""What may be otherwise in whole numbers that torch's code computes with: rows that are looked up, and positions."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Operation
from jaxformer.parity.explain.alterations.other_ids import Others, other_ids, other_positions

Given = Callable[[Any, torch.Tensor], Any]
"""given(the arguments, other whole numbers) -> the arguments with these."""


WHOLE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rounds to the nearest whole number": lambda x: torch.floor(x + 0.5),
    "rounds to the nearest whole number, halves to the even one": torch.round,
    "takes the next larger whole number": torch.ceil,
    "takes the next smaller whole number": torch.floor,
}
"""Which whole number may be taken for a float."""


class Reads(NamedTuple):
    """The whole numbers that an operation reads."""

    ids: torch.Tensor
    what: str
    others: Others
    """What may stand for them."""
    given: Given


def alterations_of(operation: Operation) -> Iterator[Alteration]:
    """Of a lookup in a table, and of what makes floats of positions."""
    if len(operation.runs) == 1 and (reads := lookup(operation) or conversion(operation)):
        for says, other in reads.others:
            yield instead(operation, f"reads {reads.what} {says}", partial(reading, reads, other))


def roundings(operations: list[Operation]) -> Iterator[Alteration]:
    """Of what makes whole numbers of floats."""
    for operation in operations:
        x: Any = next(iter(operation.args), None)
        if is_whole(operation.output) and isinstance(x, torch.Tensor) and x.is_floating_point():
            for says, function in WHOLE.items():
                yield instead(operation, says, lambda f, a, k, n, function=function: f(function(a[0]), *a[1:], **k))


def reading(reads: Reads, other: torch.Tensor, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The same function of other whole numbers."""
    return function(*reads.given(args, other), **kwargs)


def lookup(operation: Operation) -> Reads | None:
    """Of `table[ids]`, an embedding, or `index_select`."""
    args = operation.args
    if operation.name == "embedding" and is_whole(args[0]):
        return rows_of(args[0], len(args[1]), partial(put, 0))
    if operation.name == "index_select" and is_whole(args[2]):
        return rows_of(args[2], args[0].shape[args[1]], partial(put, 2))
    if operation.name == "getitem" and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
        if is_whole(args[1]):
            return rows_of(args[1], len(args[0]), partial(put, 1))
        if isinstance(args[1], tuple) and len(args[1]) and is_whole(args[1][0]) and not any(map(is_whole, args[1][1:])):
            return rows_of(args[1][0], len(args[0]), lambda args, other: (args[0], (other, *args[1][1:])))
    return None


def conversion(operation: Operation) -> Reads | None:
    """Of an operation that makes floats of whole numbers."""
    first: Any = next(iter(operation.args), None)
    floats = isinstance(operation.output, torch.Tensor) and operation.output.is_floating_point()
    if floats and is_whole(first) and first.shape == operation.output.shape:
        return Reads(first, "positions", other_positions(first), partial(put, 0))
    return None


def rows_of(ids: torch.Tensor, rows: int, given: Given) -> Reads:
    """Of a table of so many."""
    return Reads(ids, "rows", other_ids(ids, rows), given)


def put(at: int, args: Any, other: torch.Tensor) -> Any:
    """The arguments with another one."""
    return (*args[:at], other, *args[at + 1 :])


def is_whole(x: Any) -> bool:
    """Whether it is a tensor of several whole numbers."""
    return isinstance(x, torch.Tensor) and x.dtype in (torch.int64, torch.int32) and x.numel() > 1
