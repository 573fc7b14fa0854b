"""What may be otherwise in how what comes in is scaled before a function that is not linear: a temperature, a unit of time, and
which function makes features of it."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.of_operands import ORDINALS, same
from jaxformer.parity.explain.alterations.of_operations import instead, is_real, with_operand
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.other_functions import ACTIVATIONS, PLAIN_NAMES

WAVES = ("sin", "cos")
UNITS = {
    "0.001": 1e-3,
    "1000": 1e3,
    "2 pi": 2 * math.pi,
    "pi": math.pi,
    "1 / (2 pi)": 0.5 / math.pi,
    "1 / pi": 1 / math.pi,
    "0.01": 0.01,
    "100": 100.0,
    "0.5": 0.5,
    "2": 2.0,
    "-1": -1.0,
}
"""By which a time or an angle may be multiplied: far from 1, no slope leads there."""
FEATURES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    name: ACTIVATIONS[name] for name in ("relu", "elu", "exp", "softmax", "squared relu", "sigmoid", "softplus", "silu", "gelu")
} | {"no function": lambda x: x, "elu plus 1": lambda x: ACTIVATIONS["elu"](x) + 1}
"""What may be made of queries and keys where no softmax is."""


def alterations_of(operations: list[Operation]) -> Iterator[Alteration | Dial]:
    """The plain ones first."""
    yield from features(operations)
    made = [each.output for each in operations if is_real(each)]
    for operation in operations:
        if is_curved(operation):
            yield from scaled(operation, made)
    yield from angles(operations)


def is_curved(operation: Operation) -> bool:
    """Whether it is an activation, a softmax or the like."""
    name = PLAIN_NAMES.get(operation.name, operation.name)
    return name in ACTIVATIONS and is_real(operation) and isinstance(operation.args[0], torch.Tensor)


def scaled(operation: Operation, made: list[torch.Tensor]) -> Iterator[Dial]:
    """A multiple of what it reads, if no operation of the code made that."""
    x = operation.args[0]
    if not any(same(x, each) for each in made):
        yield Dial(
            f"computes {operation.source}",
            f"has {{}} times its {ORDINALS[0]} operand",
            1.0,
            lambda c: operation.inside(partial(with_operand, 0, lambda x: x * c)),
        )


def angles(operations: list[Operation]) -> Iterator[Alteration]:
    """What sines and cosines are of, in another unit."""
    waves = [each for each in operations if each.name in WAVES and isinstance(each.args[0], torch.Tensor)]
    for operation in operations:
        if is_real(operation) and any(same(operation.output, wave.args[0]) for wave in waves):
            for says, factor in UNITS.items():
                yield instead(operation, f"{says} times that", lambda f, a, k, n, factor=factor: f(*a, **k) * factor)


def features(operations: list[Operation]) -> Iterator[Alteration]:
    """Another function, where a number is added to an activation: of every such place, and of one."""
    found: dict[str, list[tuple[Operation, Operation]]] = {}
    for first in operations:
        name = PLAIN_NAMES.get(first.name, first.name)
        for second in operations if name in ACTIVATIONS else ():
            if second.name in ("add", "sub") and type(second.args[1]) in (int, float) and same_tensor(second, first):
                found.setdefault(f"{name} {second.args[1]}", []).append((first, second))
    for those in found.values():
        for says, function in FEATURES.items():
            every = "" if len(those) == 1 else ", each time"
            said = f"computes {those[0][1].source}", f"{says} there{every}"
            yield Alteration(*said, partial(made_by, those, function))
            for pair in those if len(those) > 1 else ():
                yield Alteration(f"computes {pair[1].source}", f"{says} there", partial(made_by, [pair], function))


def same_tensor(second: Operation, first: Operation) -> bool:
    """Whether an operation reads what another one gives."""
    return (
        isinstance(second.args[0], torch.Tensor)
        and isinstance(first.output, torch.Tensor)
        and same(second.args[0], first.output)
    )


def made_by(pairs: list[tuple[Operation, Operation]], function: Callable[[torch.Tensor], torch.Tensor]) -> Altered:
    """Inside, a function stands for two operations."""
    first: dict[Any, Any] = {one.place: lambda f, a, k, n: a[0] for one, _ in pairs}
    return Altered(first | {other.place: lambda f, a, k, n: function(a[0]) for _, other in pairs})
