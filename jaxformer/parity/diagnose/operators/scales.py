"""Mutations of scales: a temperature before a function that is not linear, the unit of an angle, the function that makes
features, and the weight of an input by the step dt of a continuous state space: x = dt A decays a state by exp(x), and what
comes in may be weighed by dt, as Euler has it, or by dt (exp(x) - 1) / x, which holds the input in between."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.mutation import Change, Free, Proposal, propose
from jaxformer.parity.diagnose.nudges import of_reals
from jaxformer.parity.diagnose.operators.arguments import with_operand
from jaxformer.parity.diagnose.operators.functions import ACTIVATIONS, SPELLED, is_activation, is_real
from jaxformer.parity.diagnose.trace import Op, Rewrite, same

FEATURE = Change("scales.feature", "has {function} there")
EVERY_FEATURE = Change("scales.every_feature", "has {function} there, each time")
TEMPERATURE = Change("scales.temperature", "multiplies its first operand by {value} (a temperature)")
UNIT = Change("scales.unit", "multiplies the result by {by}")
WEIGHED = Change(
    "scales.discretised",
    {
        "exponent": "multiplies it by {factor}, x being what {1} is of",
        "product": "multiplies it by {factor}, x being {1}",
    },
)
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
Function = Callable[[torch.Tensor], torch.Tensor]
FEATURES: dict[str, Function] = {
    SPELLED.get(name, name): ACTIVATIONS[name]
    for name in ("relu", "elu", "exp", "softmax", "squared_relu", "sigmoid", "softplus", "silu", "gelu")
} | {"no function": lambda x: x, "elu plus 1": lambda x: ACTIVATIONS["elu"](x) + 1}
"""What may be made of queries and keys where no softmax is."""
FACTORS: dict[str, Function] = {
    "(exp(x) - 1) / x": lambda x: torch.expm1(x) / x,
    "x / (exp(x) - 1)": lambda x: x / torch.expm1(x),
    "1 / (1 - x/2)": lambda x: 1 / (1 - x / 2),
    "exp(x)": torch.exp,
    "exp(-x)": lambda x: torch.exp(-x),
}
WEIGHING = ("mul", "div", "truediv", "einsum", "matmul")


def proposals(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of features, temperatures and angles, the plain ones first."""
    yield from features(operations)
    made = [each.output for each in operations if is_real(each)]
    for op in operations:
        if activation(op) and is_real(op) and not any(same(op.args[0], each) for each in made):
            yield op.solving(TEMPERATURE, Free(1.0), lambda c: partial(with_operand, 0, lambda x: x * c))
    yield from angles(operations)


def activation(op: Op) -> str:
    """The name of an activation, a softmax or the like of a tensor; ''."""
    return op.name if is_activation(op) and isinstance(next(iter(op.args), None), torch.Tensor) else ""


def angles(operations: list[Op]) -> Iterator[Proposal]:
    """Another unit for what sines and cosines are of."""
    waves = [each.args[0] for each in operations if each.name in ("sin", "cos") and each.args]
    for op in operations:
        if is_real(op) and any(same(op.output, wave) for wave in waves):
            for by, factor in UNITS.items():
                yield op.instead(UNIT, lambda f, a, k, n, factor=factor: f(*a, **k) * factor, by=by)


def features(operations: list[Op]) -> Iterator[Proposal]:
    """Another function, where a number is added to an activation: in every such place, and in one."""
    found: dict[str, list[tuple[Op, Op]]] = {}
    for first in operations:
        name = activation(first)
        for second in operations if name else ():
            x, number = (*second.args, None, None)[:2]
            if second.name in ("add", "sub") and type(number) in (int, float) and same(x, first.output):
                found.setdefault(f"{name} {number}", []).append((first, second))
    for pairs in found.values():
        for name, function in FEATURES.items():
            every = EVERY_FEATURE if len(pairs) > 1 else FEATURE
            yield propose(every, pairs[0][1].target, partial(made_by, pairs, function), function=name)
            for pair in pairs if len(pairs) > 1 else ():
                yield propose(FEATURE, pair[1].target, partial(made_by, [pair], function), function=name)


def made_by(pairs: list[tuple[Op, Op]], function: Function) -> Rewrite:
    """Edit, a function stands for two operations."""
    first: dict[Any, Any] = {one.place: lambda f, a, k, n: a[0] for one, _ in pairs}
    return Rewrite(first | {other.place: lambda f, a, k, n: function(a[0]) for _, other in pairs})


def discretisations(operations: list[Op]) -> Iterator[Proposal]:
    """Other weights of each product, by each x that decays."""
    for how, decay, exponents in decays(operations):
        for product in operations:
            if product.name in WEIGHING and len(product.runs) == len(exponents) and weighs(exponents[0], product.output):
                for name, factor in FACTORS.items():
                    edit = partial(product.rewrite, partial(weighed, exponents, factor))
                    yield propose(WEIGHED, (product.target, decay.target), edit, how=how, factor=name)


def decays(operations: list[Op]) -> Iterator[tuple[str, Op, list[Any]]]:
    """Exponents of exponentials, and products that are nowhere positive, as those are that are added up first."""
    for op in operations:
        if op.name == "exp" and op.args:
            yield "exponent", op, [run.args[0] for run in op.runs]
        elif op.name in WEIGHING and of_reals(op.output) and op.output.ndim and op.output.max() <= 0:
            yield "product", op, [run.output for run in op.runs]


def weighs(x: Any, product: Any) -> bool:
    """True if there is one x for each entry, or for each of the first axes."""
    tensors = isinstance(x, torch.Tensor) and isinstance(product, torch.Tensor)
    return tensors and 0 < x.ndim <= product.ndim and product.shape[: x.ndim] == x.shape


def weighed(exponents: list[torch.Tensor], factor: Function, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """The product, weighed."""
    product, x = function(*args, **kwargs), factor(exponents[n])
    return product * x.reshape(*x.shape, *[1] * (product.ndim - x.ndim))
