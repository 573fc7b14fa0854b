"""What may be otherwise in what an operation reads: another array, a multiple of it, a number on it; one number of a line."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.of_operations import (
    REDUCTIONS,
    instead,
    is_real,
    with_argument,
    with_operand,
)
from jaxformer.parity.explain.alterations.operations import Altered, Operation, is_inside, same
from jaxformer.parity.explain.constants import BASES

MOST_BEFORE = 8
"""Arrays that were made before and may be read instead, the last of them."""
DIVIDED, ROOTED = ("div", "truediv"), ("sqrt", "rsqrt", "log", "reciprocal")
GATING = ("sigmoid", "tanh", "softplus", "exp")
ORDINALS = ("first", "second", "third")
ARITHMETIC = {"add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "rtruediv", "rdiv", "pow", "rpow"}
"""Operations whose whole numbers are numbers, not axes or sizes."""


def alterations_of(operations: list[Operation]) -> Iterator[Alteration | Dial]:
    """The plain ones first; `numbers` not yet, of which some are those of what was computed before."""
    once = [each for each in operations if len(each.runs) == 1]
    yield from literals(operations)
    yield from logarithms(operations)
    inside = [each for each in once if is_inside(each.place)]
    yield from others_read([each for each in once if each not in inside])
    yield from others_read(inside)
    yield from before_sums(once)


def numbers_in(operations: list[Operation]) -> Iterator[tuple[Operation, int, float]]:
    """Each number that an operation computes with, and which argument it is."""
    for operation in operations:
        for at, value in enumerate(operation.args):
            if type(value) in (int, float) and operation.name in ARITHMETIC:
                yield operation, at, float(value)


def literals(operations: list[Operation]) -> Iterator[Dial]:
    """A number that stands in a line more than once, as in `20 * tanh(x / 20)`."""
    places: dict[tuple[Any, float], list[tuple[Operation, int]]] = {}
    for operation, at, value in numbers_in(operations):
        places.setdefault((operation.line, value), []).append((operation, at))
    for (_, value), those in places.items():
        if len({operation.place for operation, _ in those}) > 1:
            says = f"with {{}} for {value:g} there, each time"
            yield Dial(f"computes {those[-1][0].source}", says, value, partial(with_literal, those), sure=True)


def logarithms(operations: list[Operation]) -> Iterator[Alteration]:
    """A number that is the logarithm of a base, as in `exp(-log(10000) i / n)`: that of another base."""
    for operation, at, value in numbers_in(operations):
        base = next((each for each in BASES if math.isclose(abs(value), math.log(each))), None)
        for other in BASES if base else ():
            if other != base:
                number = math.copysign(math.log(other), value)
                says = f"with the logarithm of {other:g} for that of {base:g}"
                yield Alteration(f"computes {operation.source}", says, partial(operation.inside, with_argument(at, number)))


def with_literal(those: list[tuple[Operation, int]], number: float) -> Altered:
    """Inside, it is another one."""
    return Altered({operation.place: with_argument(at, number) for operation, at in those})


def others_read(operations: list[Operation]) -> Iterator[Alteration]:
    """An operation reads what another one gave, or read."""
    before: list[tuple[str, torch.Tensor]] = []
    for operation in operations:
        for i, x in enumerate(operation.args[:3]):
            if isinstance(x, torch.Tensor) and x.ndim:
                for says, other in before[::-1]:
                    if may_be_read(operation, x, other):
                        read = partial(with_operand, i, lambda x, other=other: other.clone())
                        yield instead(operation, f"reads {says} for its {ORDINALS[i]} operand", read)
        if isinstance(operation.output, torch.Tensor) and not any(same(operation.output, x) for _, x in before):
            before = [*before, (operation.source, operation.output)][-MOST_BEFORE:]


def may_be_read(operation: Operation, x: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether another array can stand for an operand; where that is added up, it may be longer or shorter."""
    if other.dtype != x.dtype or other.ndim != x.ndim or same(other, x):
        return False
    return other.shape == x.shape or (operation.name in REDUCTIONS and other.shape[:-1] == x.shape[:-1])


def before_sums(operations: list[Operation]) -> Iterator[Alteration]:
    """What is done with a sum is done with the second of its parts, before the first one is added."""
    sums = [each for each in operations if each.name == "add" and all(isinstance(x, torch.Tensor) for x in each.args[:2])]
    for total, other in itertools.product(sums, operations):
        first = next(iter(other.args), None)
        reads = is_real(other) and isinstance(first, torch.Tensor) and first is not total.args[0] and same(first, total.output)
        if reads and total.args[1].shape == other.output.shape:
            yield instead(other, f"does it to the second operand of {total.source} alone", partial(to_second, total))


def to_second(total: Operation, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """a + f(b) for f(a + b)"""
    return total.args[0] + function(total.args[1], *args[1:], **kwargs)


def numbers(operation: Operation) -> Iterator[Dial]:
    """A multiple of one of two operands; a number on what is divided by, under a root, or in a gate."""
    if not is_real(operation):
        return
    tensors = [i for i, x in enumerate(operation.args[:2]) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for i in tensors if operation.name in ("add", "sub") and len(tensors) == 2 else ():
        yield dial(operation, f"has {{}} times its {ORDINALS[i]} operand", 1.0, i, torch.mul)
    at = 1 if operation.name in DIVIDED else 0
    if at in tensors and operation.name in DIVIDED + ROOTED + GATING:
        yield dial(operation, f"has {{}} more in its {ORDINALS[at]} operand", 0.0, at, torch.add)


def dial(operation: Operation, says: str, start: float, i: int, change: Callable[[torch.Tensor, float], torch.Tensor]) -> Dial:
    """A number in what is read."""

    def inside(number: float) -> Altered:
        return operation.inside(partial(with_operand, i, lambda x: change(x, number)))

    return Dial(f"computes {operation.source}", says, start, inside)
