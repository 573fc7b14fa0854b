"""Where code multiplies by the cosines and sines of rotary positions: other tables there."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.operations import Altered, Operation, Place, same
from jaxformer.parity.explain.alterations.rotary_tables import Tables, begins, is_rotation

STEPS = {"one position later": 1, "one position earlier": -1}


class Use(NamedTuple):
    """A product with a table."""

    operation: Operation
    run: int
    at: int
    """Which of its factors is the table."""

    @property
    def table(self) -> torch.Tensor:
        """As it is there."""
        return self.operation.runs[self.run].args[self.at]

    @property
    def other(self) -> Any:
        """What it is multiplied by."""
        return self.operation.runs[self.run].args[1 - self.at]


def uses(operations: list[Operation]) -> Iterator[Alteration]:
    """What is rotated in each layer, queries first and then keys or the other way round: each at other positions, or not at
    all."""
    found = products(operations)
    each = 2 if len(found) > 1 and are_of_one(*found[:2]) else 1
    if not found or len(found) % (2 * each):
        return
    for first in (0, each):
        those = [pair for n in range(first, len(found), 2 * each) for pair in found[n : n + each]]
        operation = those[0][0].operation
        only = those[0][0].run if len(operation.runs) > 1 else None
        name = Operation(operation.place, operation.function, operation.runs, only).source
        for says, other in other_angles(those[0]).items():
            both = [(pair, other) for pair in those]
            yield Alteration(f"rotates in {name}", says, partial(at_uses, both))


def are_of_one(one: tuple[Use, Use], other: tuple[Use, Use]) -> bool:
    """Whether two pairs of products rotate the same array, each of them a half of it."""
    given = [[use.other for use in pair] for pair in (one, other)]
    return any(same(x, y) for x in given[0] for y in given[1])


def products(operations: list[Operation]) -> list[tuple[Use, Use]]:
    """Those with cosines and with sines, pair by pair in their order."""
    every = [
        (run.number, Use(operation, i, at))
        for operation in operations
        if operation.name == "mul"
        for i, run in enumerate(operation.runs)
        for at, x in enumerate(run.args)
        if isinstance(x, torch.Tensor) and x.ndim > 1 and x.is_floating_point() and x.shape[-1] > 1
    ]
    in_order = [use for _, use in sorted(every, key=lambda each: each[0])]
    found: list[tuple[Use, Use]] = []
    taken: set[int] = set()
    for i, one in enumerate(in_order):
        for j in range(i + 1, min(i + 5, len(in_order))):
            other = in_order[j]
            if i in taken or j in taken or one.table.shape != other.table.shape:
                continue
            for cos, sin in ((one, other), (other, one)):
                if is_rotation(cos.table, sin.table) and at_zero(cos.table, sin.table):
                    found.append((cos, sin))
                    taken |= {i, j}
                    break
    return found


def at_zero(cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Whether they begin as tables do, along whichever axis the positions are."""
    axis = positions_axis(cos)
    return axis is not None and begins(cos.movedim(axis, -2), sin.movedim(axis, -2))


def positions_axis(table: torch.Tensor) -> int | None:
    """Along which a table changes, but for its last."""
    axes = (axis for axis in range(table.ndim - 2, -1, -1) if table.shape[axis] > 1)
    return next((axis for axis in axes if not torch.equal(table.narrow(axis, 0, 1), table.narrow(axis, 1, 1))), None)


def other_angles(use: tuple[Use, Use]) -> dict[str, Tables]:
    """In words."""
    cos, sin = (each.table for each in use)
    axis = positions_axis(cos)
    if axis is None:
        return {}
    angles, size = torch.atan2(sin, cos), (cos.square() + sin.square()).sqrt()
    step = angles.narrow(axis, 1, 1) - angles.narrow(axis, 0, 1)
    found = {"not rotated": (torch.ones_like(cos), torch.zeros_like(sin)), "rotated backwards": (cos, -sin)}
    for says, n in STEPS.items():
        later, edge = angles + n * step, "the last comes first" if n < 0 else "the first comes last"
        found[f"rotated {says}"] = later.cos() * size, later.sin() * size
        found[f"rotated {says}, where {edge}"] = cos.roll(-n, axis), sin.roll(-n, axis)
    return found


def relaid(use: tuple[Use, Use], neighbours: bool) -> Tables:
    """The same angles, as the other pairs have them, in a product with them."""
    cos, sin = (each.table for each in use)
    half = cos.shape[-1] // 2
    if neighbours:
        return torch.cat([cos[..., ::2]] * 2, -1), torch.cat([sin[..., ::2]] * 2, -1)
    return cos[..., :half].repeat_interleave(2, -1), sin[..., :half].repeat_interleave(2, -1)


def at_uses(those: list[tuple[tuple[Use, Use], Tables]]) -> Altered:
    """Inside, these products are with other tables."""
    found: dict[Place, dict[int, dict[int, torch.Tensor]]] = {}
    for pair, tables in those:
        for use, table in zip(pair, tables, strict=True):
            found.setdefault(use.operation.place, {}).setdefault(use.run, {})[use.at] = table
    return Altered({place: partial(with_factors, runs) for place, runs in found.items()})


def with_factors(runs: dict[int, dict[int, torch.Tensor]], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """A product with other factors in some of its runs."""
    return function(*(runs.get(n, {}).get(i, each) for i, each in enumerate(args)), **kwargs)
