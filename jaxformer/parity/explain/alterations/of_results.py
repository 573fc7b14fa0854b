"""What may be otherwise in what an operation gives: rounded, something behind it, a multiple of it."""

from collections.abc import Callable, Iterator

import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Dial
from jaxformer.parity.explain.alterations.of_operations import instead, is_real, of_kinds
from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.other_functions import ACTIVATIONS, ADDED, PLAIN_NAMES

Limit = Callable[[torch.Tensor, float], torch.Tensor]
LOW, HIGH = (0.002, 0.05, 0.5), (0.5, 0.95, 0.998)
"""How much of an output is below a limit, where the search for one begins."""
CLIPPED = {*ACTIVATIONS, "add", "matmul", "linear", "clamp", "clip"}
"""Operations behind which a clip may come."""
ROUNDED = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def alterations_of(operation: Operation) -> Iterator[Alteration | Dial]:
    """The plain ones first."""
    yield from of_kinds(operation, (roundings, additions, factors, limits))


def roundings(operation: Operation) -> Iterator[Alteration]:
    """Its output in a smaller type."""
    if is_real(operation):
        for name, kind in ROUNDED.items():
            yield instead(operation, f"rounds it to {name}", lambda f, a, k, n, kind=kind: f(*a, **k).to(kind).double())


def additions(operation: Operation) -> Iterator[Alteration]:
    """Something comes behind it."""
    if is_real(operation) and operation.output.ndim > 1:
        for name, function in ADDED.items():
            yield instead(operation, f"has {name} behind it", lambda f, a, k, n, function=function: function(f(*a, **k)))


def factors(operation: Operation) -> Iterator[Dial]:
    """A multiple of it."""
    if is_real(operation):
        says = "{} times that"
        yield Dial(f"computes {operation.source}", says, 1.0, lambda c: operation.inside(lambda f, a, k, n: f(*a, **k) * c))


def limits(operation: Operation) -> Iterator[Dial]:
    """A largest or a smallest number, which some of its output is beyond."""
    if is_real(operation) and PLAIN_NAMES.get(operation.name, operation.name) in CLIPPED:
        for says, limit, parts in (("{} at most", torch.clamp_max, HIGH), ("{} at least", torch.clamp_min, LOW)):
            seeds = tuple(float(operation.output.quantile(part)) for part in parts)
            yield Dial(f"computes {operation.source}", says, seeds[0], limited(operation, limit), seeds=seeds)


def limited(operation: Operation, limit: Limit) -> Callable[[float], Altered]:
    """Inside, with a limit."""
    return lambda number: operation.inside(lambda f, a, k, n: limit(f(*a, **k), number))
