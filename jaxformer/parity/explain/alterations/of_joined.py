"""What may be otherwise in how arrays are joined: their order, in turns, nothing in the place of one."""

import itertools
from collections.abc import Iterator

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Operation

MOST_PARTS = 4


def alterations_of(operation: Operation) -> Iterator[Alteration]:
    """Of arrays one behind the other, and of two beside each other."""
    parts = next(iter(operation.args), None)
    if isinstance(parts, (tuple, list)) and operation.name in ("cat", "concat"):
        yield from of_parts(operation, [*range(len(parts))])
        if len(parts) == 2 and alike(*parts):
            yield instead(operation, "has them in turns", lambda f, a, k, n: torch.stack([*a[0]], -1).flatten(-2))
    if isinstance(parts, (tuple, list)) and operation.name == "stack" and len(parts) == 2 == operation.output.shape[-1]:
        says = "has one behind the other"
        yield instead(operation, says, lambda f, a, k, n: torch.cat([*a[0]], -1).reshape(operation.output.shape))


def of_parts(operation: Operation, parts: list[int]) -> Iterator[Alteration]:
    """Their order; zeros for one of them."""
    yield instead(operation, "has them in the other order", lambda f, a, k, n: f(a[0][::-1], *a[1:], **k))
    for order in [*itertools.permutations(parts)][1:-1] if 2 < len(parts) <= MOST_PARTS else ():
        says = f"has them in the order {', '.join(map(str, order))}"
        yield instead(operation, says, lambda f, a, k, n, o=order: f([a[0][i] for i in o], *a[1:], **k))
    for part in parts if len(parts) <= MOST_PARTS else ():
        says = f"has 0 for part {part + 1} of {len(parts)}"
        yield instead(operation, says, lambda f, a, k, n, p=part: f([x * (i != p) for i, x in enumerate(a[0])], *a[1:], **k))


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are of one shape, with several entries along their last axis."""
    return one.shape == other.shape and one.ndim > 1 and one.shape[-1] > 1
