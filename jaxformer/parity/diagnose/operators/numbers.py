"""A number in what an operation reads is another: a literal, a logarithm, a multiple of an operand or an offset on it."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.constants import BASES
from jaxformer.parity.diagnose.mutation import Change, Free, Proposal, propose
from jaxformer.parity.diagnose.operators.arguments import with_argument, with_operand
from jaxformer.parity.diagnose.operators.functions import is_real
from jaxformer.parity.diagnose.operators.operations import ORDINALS
from jaxformer.parity.diagnose.trace import Op, Rewrite

DIVIDED, ROOTED = ("div", "truediv"), ("sqrt", "rsqrt", "log", "reciprocal")
GATING = ("sigmoid", "tanh", "softplus", "exp")
ARITHMETIC = {"add", "radd", "sub", "rsub", "mul", "rmul", "div", "truediv", "rtruediv", "rdiv", "pow", "rpow"}
"""Operations whose whole numbers are numbers, not axes or sizes."""

EACH_TIME = Change("numbers.literal", "has {value} for {was:g} there, each time")
LOGARITHM = Change("numbers.logarithm", "has log({base:g}) for log({was:g})")
MULTIPLE = Change("numbers.multiple", "multiplies its {ordinal} operand by {value}")
OFFSET = Change("numbers.offset", "adds {value} to its {ordinal} operand")


def proposals(ops: Sequence[Op]) -> Iterator[Proposal]:
    """Mutations of a number that stands in a line more than once, as in `20 * tanh(x / 20)`, and of the base of a logarithm,
    as in `exp(-log(10000) i / n)`."""
    places: dict[tuple[Any, float], list[tuple[Op, int]]] = {}
    for op, at, value in numbers_in(ops):
        places.setdefault((op.position[:2], value), []).append((op, at))
    for (_, value), those in places.items():
        if len({op.place for op, _ in those}) > 1:
            free = Free(value, sure=True)
            yield propose(EACH_TIME, those[-1][0].target, partial(with_literal, those), free, was=value)
    for op, at, value in numbers_in(ops):
        was = next((each for each in BASES if math.isclose(abs(value), math.log(each))), None)
        for base in BASES if was else ():
            if base != was:
                yield op.instead(LOGARITHM, with_argument(at, math.copysign(math.log(base), value)), base=base, was=was)


def numbers_in(ops: Sequence[Op]) -> Iterator[tuple[Op, int, float]]:
    """Each number that an operation computes with, and which argument it is."""
    for op in ops:
        for at, value in enumerate(op.args):
            if type(value) in (int, float) and op.name in ARITHMETIC:
                yield op, at, float(value)


def with_literal(those: Sequence[tuple[Op, int]], number: float) -> Rewrite:
    """Edit, these arguments are another number."""
    return Rewrite({op.place: with_argument(at, number) for op, at in those})


def operand_numbers(op: Op) -> Iterator[Proposal]:
    """Mutations with a multiple of one of two operands; with a number on what is divided by, under a root, or in a gate."""
    if not is_real(op):
        return
    tensors = [i for i, x in enumerate(op.args[:2]) if isinstance(x, torch.Tensor) and x.is_floating_point()]
    for i in tensors if op.name in ("add", "sub") and len(tensors) == 2 else ():
        yield op.solving(MULTIPLE, Free(1.0), partial(with_number, i, torch.mul), ordinal=ORDINALS[i])
    at = 1 if op.name in DIVIDED else 0
    if at in tensors and op.name in DIVIDED + ROOTED + GATING:
        yield op.solving(OFFSET, Free(0.0), partial(with_number, at, torch.add), ordinal=ORDINALS[at])


def with_number(i: int, combine: Callable[[torch.Tensor, float], torch.Tensor], number: float) -> Callable[..., Any]:
    """An operation whose operand has a number with it."""
    return partial(with_operand, i, lambda x: combine(x, number))
