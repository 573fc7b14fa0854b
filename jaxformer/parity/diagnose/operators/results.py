"""Mutations of what an operation gives: rounded, with a function behind it, a multiple of it, within limits."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn import functional

from jaxformer.parity.diagnose.mutation import Change, Free, Proposal
from jaxformer.parity.diagnose.operators.functions import ACTIVATIONS, behind, is_activation, is_real, spelled
from jaxformer.parity.diagnose.trace import Op

LIMITS = {"most": ("max", (0.5, 0.95, 0.998)), "least": ("min", (0.002, 0.05, 0.5))}
"""How much of an output is below a limit, where the search for one begins."""
CLIPPED = {"add", "matmul", "linear", "clamp", "clip"}
"""Operations behind which a clip may come, beside activations."""
ROUNDED = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
ADDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{name: ACTIVATIONS[name] for name in ("tanh", "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "softmax", "softplus")},
    "over_sum": lambda x: x / x.sum(-1, keepdim=True),
    "over_norm": partial(functional.normalize, dim=-1),
}
"""Functions that may come behind an operation."""
DIVISIONS = {"over_sum": "divides the result by its sum", "over_norm": "divides the result by its L2 norm"}

IN_TYPE = Change("results.rounded", "rounds the result to {type}")
BEHIND = Change("results.behind", spelled("applies {} to the result", ADDED) | DIVISIONS)
MULTIPLE = Change("results.multiple", "multiplies the result by {value}")
LIMIT = Change("results.limit", {"most": "has {value} at most for the result", "least": "has {value} at least for the result"})


def roundings(op: Op) -> Iterator[Proposal]:
    """Its output in a smaller type."""
    for name, kind in ROUNDED.items() if is_real(op) else ():
        yield op.instead(IN_TYPE, partial(behind, lambda y, kind=kind: y.to(kind).double()), type=name)


def additions(op: Op) -> Iterator[Proposal]:
    """Another function behind it."""
    for how, function in ADDED.items() if is_real(op) and op.output.ndim > 1 else ():
        yield op.instead(BEHIND, partial(behind, function), how=how)


def multiples(op: Op) -> Iterator[Proposal]:
    """Its output times a number."""
    if is_real(op):
        yield op.solving(MULTIPLE, Free(1.0), lambda c: partial(behind, lambda y: y * c))


def limits(op: Op) -> Iterator[Proposal]:
    """A largest or a smallest number, which some of its output is beyond."""
    for how, (end, parts) in LIMITS.items() if is_real(op) and (is_activation(op) or op.name in CLIPPED) else ():
        seeds = tuple(float(op.output.quantile(part)) for part in parts)
        clamp = partial(within, end)
        yield op.solving(LIMIT, Free(seeds[0], seeds=seeds), lambda c, clamp=clamp: partial(behind, clamp(c)), how=how)


def within(end: str, limit: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Clamp at a `limit`, "max" or "min"."""
    return partial(torch.clamp, **{end: limit})
