"""Mutations of features, temperatures and discretisations, and of an operation's output: rounded, limited, multiplied, or with
a function applied to it."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from jaxformer.parity.diagnose.calls import of_reals
from jaxformer.parity.diagnose.computes import behind, of_first, operand, with_operand
from jaxformer.parity.diagnose.functions import ACTIVATIONS, is_activation, is_real
from jaxformer.parity.diagnose.mutation import Change, Free, Proposal, propose
from jaxformer.parity.diagnose.trace import Op, Rewrite, same

FEATURE = Change("scales.feature", "has {function} there")
EVERY_FEATURE = Change("scales.every_feature", "has {function} there, each time")


def scaled(args: dict[str, Any]) -> str:
    """Words for a multiple of an activation's operand, with what it means there."""
    value = args.get("value", 1.0)
    means = " (a temperature)" if "softmax" in args["of"] and value > 0 else ""
    means = " (1 less its output)" if args["of"] == "sigmoid" and value == -1 else means
    return f"multiplies its first operand by {{value}}{means}"


TEMPERATURE = Change("scales.temperature", scaled)
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
"""Factors by which a time or an angle may be multiplied: a search along slopes does not find those far from 1."""
Function = Callable[[torch.Tensor], torch.Tensor]
FEATURES: dict[str, Function] = {
    name: ACTIVATIONS[name] for name in ("relu", "elu", "exp", "softmax", "squared relu", "sigmoid", "softplus", "silu", "gelu")
} | {"no function": lambda x: x, "elu plus 1": lambda x: ACTIVATIONS["elu"](x) + 1}
"""Functions that may be applied to queries and keys where there is no softmax (linear attention)."""
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
            yield op.solving(TEMPERATURE, Free(1.0), lambda c: with_operand(0, lambda x: x * c), of=op.name)
    yield from angles(operations)


def activation(op: Op) -> str:
    """Name of an activation, a softmax or the like of a tensor; '' for other operations."""
    return op.name if is_activation(op) and isinstance(next(iter(op.args), None), torch.Tensor) else ""


def angles(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of the unit of angles, of which sines and cosines are taken."""
    waves = [each.args[0] for each in operations if each.name in ("sin", "cos") and each.args]
    for op in operations:
        if is_real(op) and any(same(op.output, wave) for wave in waves):
            for by, factor in UNITS.items():
                yield op.instead(UNIT, behind(lambda y, factor=factor: y * factor), by=by)


def features(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of an activation that a number is added to: another function for both, in every such place, and in one."""
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
    """Rewrite in which one function takes the place of two operations, in all pairs."""
    computes = {one.place: operand(0) for one, _ in pairs} | {other.place: of_first(function) for _, other in pairs}
    return Rewrite(computes)


def discretisations(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of discretisations: each product is multiplied by a function of a decay's x, one of `FACTORS`."""
    for how, decay, exponents in decays(operations):
        for product in operations:
            if product.name in WEIGHING and len(product.runs) == len(exponents) and weighs(exponents[0], product.output):
                for name, factor in FACTORS.items():
                    edit = partial(product.rewrite, partial(weighed, exponents, factor))
                    yield propose(WEIGHED, (product.target, decay.target), edit, how=how, factor=name)


def decays(operations: list[Op]) -> Iterator[tuple[str, Op, list[Any]]]:
    """Decays with the x of each run: exponents of exponentials, and products that are nowhere positive, which may be summed
    before an exponential."""
    for op in operations:
        if op.name == "exp" and op.args:
            yield "exponent", op, [run.args[0] for run in op.runs]
        elif op.name in WEIGHING and of_reals(op.output) and op.output.ndim and op.output.max() <= 0:
            yield "product", op, [run.output for run in op.runs]


def weighs(x: Any, product: Any) -> bool:
    """True if there is one x for each entry of the product, or for each index of its first axes."""
    tensors = isinstance(x, torch.Tensor) and isinstance(product, torch.Tensor)
    return tensors and 0 < x.ndim <= product.ndim and product.shape[: x.ndim] == x.shape


def weighed(exponents: list[torch.Tensor], factor: Function, function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute the product, multiplied by the factor of its run's x."""
    product, x = function(*args, **kwargs), factor(exponents[n])
    return product * x.reshape(*x.shape, *[1] * (product.ndim - x.ndim))


LIMITS = {"most": ("max", (0.5, 0.95, 0.998)), "least": ("min", (0.002, 0.05, 0.5))}
"""Ends of a clamp, and the quantiles of the output at which the search for its limit begins."""
CLIPPED = {"add", "matmul", "linear", "clamp", "clip"}
"""Operations, beside activations, whose output may be clipped."""
ROUNDED = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ADDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: ACTIVATIONS[name] for name in ("tanh", "relu", "gelu", "gelu by tanh", "silu", "sigmoid", "softmax", "softplus")},
    "over_sum": lambda x: x / x.sum(-1, keepdim=True),
    "over_norm": partial(functional.normalize, dim=-1),
}
"""Functions that may be applied to an operation's output."""
DIVISIONS = {"over_sum": "divides the result by its sum", "over_norm": "divides the result by its L2 norm"}

IN_TYPE = Change("results.rounded", "rounds the result to {type}")
BEHIND = Change("results.behind", {how: f"applies {how} to the result" for how in ADDED} | DIVISIONS)
MULTIPLE = Change("results.multiple", "multiplies the result by {value}")
LIMIT = Change("results.limit", {"most": "has {value} at most for the result", "least": "has {value} at least for the result"})


def roundings(op: Op) -> Iterator[Proposal]:
    """Mutations that round the output to a smaller type."""
    for name, kind in ROUNDED.items() if is_real(op) else ():
        yield op.instead(IN_TYPE, behind(lambda y, kind=kind: y.to(kind).double()), type=name)


def additions(op: Op) -> Iterator[Proposal]:
    """Mutations that apply a function to the output."""
    for how, function in ADDED.items() if is_real(op) and op.output.ndim > 1 else ():
        yield op.instead(BEHIND, behind(function), how=how)


def multiples(op: Op) -> Iterator[Proposal]:
    """Mutation that multiplies the output by a number, which is solved for."""
    if is_real(op):
        yield op.solving(MULTIPLE, Free(1.0), lambda c: behind(lambda y: y * c))


def limits(op: Op) -> Iterator[Proposal]:
    """Mutations that limit the output from above or from below; the limit is solved for."""
    for how, (end, parts) in LIMITS.items() if is_real(op) and (is_activation(op) or op.name in CLIPPED) else ():
        seeds = tuple(float(op.output.quantile(part)) for part in parts)
        free = Free(seeds[0], seeds=seeds)
        yield op.solving(LIMIT, free, lambda c, end=end: behind(partial(limited, end, c)), how=how)


def limited(end: str, limit: float, y: torch.Tensor) -> torch.Tensor:
    """Limit the output; ValueError where the limit alone is left of it."""
    found = y.clamp(**{end: limit})
    if bool((found == limit).all()):
        raise ValueError(f"{limit} limits all entries")
    return found
