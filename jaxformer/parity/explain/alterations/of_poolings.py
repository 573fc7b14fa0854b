"""What may be otherwise in how one vector is made of many: by another position, a mean of others, the last that counts."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operands import ORDINALS, same
from jaxformer.parity.explain.alterations.of_operations import instead, with_operand
from jaxformer.parity.explain.alterations.operations import Operation
from jaxformer.parity.explain.alterations.rerun import Rerun

MOST_SEQUENCES, MOST_MASKS = 4, 3
MOST_POOLED = 4
"""Arrays of one vector for each row, the last of them."""
JOINING = ("cat", "concat", "stack")
Named = list[tuple[str, torch.Tensor]]


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Of the array itself, and of what operations read."""
    known = [*known_in(rerun)]
    masks = [(says, x) for says, x in known if x.dtype == torch.bool and x.ndim == 2 and x.any() and not x.all()][:MOST_MASKS]
    reads = [each for each in rerun.operations if len(each.runs) == 1 and reads_one(each)][-MOST_POOLED:]
    fitting = {tuple(x.shape) for each in reads for x in read_by(each)} | {tuple(rerun.wanted.shape)}
    pooled = [each for says, x in sequences(known, fitting) for each in pooled_of(says, x, masks)]
    for says, x in pooled:
        if tuple(x.shape) == tuple(rerun.wanted.shape):
            yield Alteration("the array as it is", f"{says} in its place", lambda x=x: rerun.followed_by(lambda _: x.clone()))
    for operation in reads:
        yield from read_instead(operation, pooled)


def sequences(known: Named, fitting: set[tuple[int, ...]]) -> Named:
    """Those that are no copies of each other, and whose positions have one of these shapes: the first, and the last ones."""
    found: Named = []
    for says, x in known:
        fits = x.is_floating_point() and x.ndim == 3 and x.shape[1] > 1 and (len(x), x.shape[2]) in fitting
        if fits and not any(same(x, other) for _, other in found):
            found.append((says, x))
    return [*found[:-MOST_SEQUENCES][:1], *found[-MOST_SEQUENCES:]]


def known_in(rerun: Rerun) -> Iterator[tuple[str, torch.Tensor]]:
    """What comes in, what children gave, and what was made."""
    for number, x in enumerate(arrays_in(rerun.arguments)):
        yield f"input {number + 1}", x
    for site, given in rerun.given.items():
        for x in arrays_in(given)[:1]:
            yield str(site).removeprefix(f"{rerun.owner.path}."), x
    for operation in rerun.operations:
        for x in arrays_in(operation.output)[:1] if len(operation.runs) == 1 else ():
            yield operation.source, x
        for x in operation.args[1:2] if operation.name == "masked_fill" else ():
            yield "what is not masked", ~x


def pooled_of(says: str, x: torch.Tensor, masks: Named) -> Iterator[tuple[str, torch.Tensor]]:
    """One vector of each row."""
    yield f"the first position of {says}", x[:, 0]
    yield f"the last position of {says}", x[:, -1]
    yield f"the mean of all positions of {says}", x.mean(1)
    yield f"the largest of all positions of {says}", x.amax(1)
    yield f"the mean without the first position of {says}", x[:, 1:].mean(1)
    for mask_says, mask in masks:
        if mask.shape != x.shape[:2]:
            continue
        for how, one in ((mask_says, mask), (f"the contrary of {mask_says}", ~mask)):
            weights = one[..., None].to(x.dtype)
            numbers = torch.arange(x.shape[1])
            rows, last = torch.arange(len(x)), (one * numbers).argmax(1)
            yield f"the mean of {says} by {how}", (x * weights).sum(1) / weights.sum(1).clamp(min=1)
            yield f"the sum of {says} by {how}, divided by all positions", (x * weights).mean(1)
            yield f"the last position of {says} by {how}", x[rows, last]
            yield f"position {how}, counted, of {says}", x[rows, (one.sum(1) - 1).clamp(min=0)]
            yield f"the largest of {says} by {how}", x.masked_fill(~one[..., None], -torch.inf).amax(1)
            without = weights.clone()
            without[:, 0] = 0
            yield f"the mean of {says} by {how}, without the first", (x * without).sum(1) / without.sum(1).clamp(min=1)


def reads_one(operation: Operation) -> bool:
    """Whether it reads one vector of each row."""
    return any(x.ndim == 2 and x.is_floating_point() for x in read_by(operation))


def read_by(operation: Operation) -> list[torch.Tensor]:
    """Its first arrays, or those that it puts together."""
    parts = operation.args[0] if operation.name in JOINING else operation.args[:2]
    return [x for x in parts if isinstance(x, torch.Tensor)]


def read_instead(operation: Operation, pooled: Named) -> Iterator[Alteration]:
    """For one of those that it reads."""
    joining = operation.name in JOINING
    for i, x in enumerate(operation.args[0] if joining else operation.args[:2]):
        for says, other in pooled if isinstance(x, torch.Tensor) else ():
            if other.shape == x.shape and other.dtype == x.dtype and not same(other, x):
                change: Any = partial(with_part, i, other) if joining else lambda _, other=other: other.clone()
                name = f"part {i + 1}" if joining else f"its {ORDINALS[i]} operand"
                yield instead(operation, f"reads {says} for {name}", partial(with_operand, 0 if joining else i, change))


def with_part(i: int, other: torch.Tensor, parts: Any) -> list[torch.Tensor]:
    """With another one in a list."""
    return [*parts[:i], other.clone(), *parts[i + 1 :]]
