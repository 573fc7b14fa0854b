"""What may be otherwise in how several arrays are packed in one: slices in another order, or a part of each, again and again,
as queries, keys and values that are packed head by head."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.operations import Altered, Operation, same

MOST_BLOCKS, MOST_PARTS = 4, 9
"""Parts of which each order is tried, and which may be packed in groups."""
MOST_GROUPS = 16
"""Numbers of groups that are tried: of heads, most often."""
SPLITS = ("chunk", "split", "split_with_sizes", "tensor_split")
Cut = Callable[[torch.Tensor], list[torch.Tensor]]


class Packed(NamedTuple):
    """Arrays that lie one behind the other in one."""

    source: str
    axis: int
    sizes: list[int]
    inside: Callable[[Cut], Altered]
    """Inside, they are cut out otherwise."""


def alterations_of(operations: list[Operation]) -> Iterator[Alteration]:
    """Slices in another order; parts in groups."""
    taken = [*slices(operations)]
    for packed in (*taken, *alike(taken)):
        for order in [*itertools.permutations(range(len(packed.sizes)))][1:] if len(packed.sizes) <= MOST_BLOCKS else ():
            says = f"has its parts packed in the order {', '.join(map(str, order))}"
            yield Alteration(f"computes {packed.source}", says, partial(packed.inside, partial(in_order, packed, order)))
    yield from picks(operations)
    for packed in (*taken, *splits(operations), *products(operations)):
        most = math.gcd(*packed.sizes)
        for groups in [each for each in range(2, most + 1) if most % each == 0][:MOST_GROUPS]:
            says = f"has them packed in {groups} groups" if groups < max(packed.sizes) else "has one entry of each in turns"
            yield Alteration(f"computes {packed.source}", says, partial(packed.inside, partial(in_groups, packed, groups)))


def alike(several: list[Packed]) -> Iterator[Packed]:
    """All those with blocks of the same sizes, as the rotated part and the rest of queries and of keys."""
    found: dict[tuple[int, ...], list[Packed]] = {}
    for each in several:
        found.setdefault((each.axis, *each.sizes), []).append(each)
    for first, *others in found.values():
        if others:
            yield first._replace(source=f"{first.source}, everywhere", inside=partial(everywhere, [first, *others]))


def everywhere(several: list[Packed], cut: Cut) -> Altered:
    """Inside, all of them are cut out otherwise."""
    return Altered({place: compute for each in several for place, compute in each.inside(cut).altered.items()})


def in_order(packed: Packed, order: tuple[int, ...], x: torch.Tensor) -> list[torch.Tensor]:
    """Where the blocks lie in this order."""
    blocks = x.split([packed.sizes[i] for i in order], packed.axis)
    return [blocks[order.index(i)] for i in range(len(order))]


def in_groups(packed: Packed, groups: int, x: torch.Tensor) -> list[torch.Tensor]:
    """Where a part of each comes in turn."""
    parts = x.unflatten(packed.axis, (groups, -1)).split([size // groups for size in packed.sizes], packed.axis + 1)
    return [part.flatten(packed.axis, packed.axis + 1) for part in parts]


def splits(operations: list[Operation]) -> Iterator[Packed]:
    """Of functions that give all parts at once."""
    for operation in operations:
        if operation.name in SPLITS and isinstance(x := operation.args[0], torch.Tensor):
            sizes, axis = zip(*(cut_of(x, part) or (0, 0) for part in operation.output), strict=True)
            if len({*axis}) == 1 and len(sizes) <= MOST_PARTS and all(sizes):
                yield Packed(operation.source, axis[0], [*sizes], partial(split_otherwise, operation))


def picks(operations: list[Operation]) -> Iterator[Alteration]:
    """Of an axis of few entries each of which is taken by itself, as `x[..., 0, :]` of queries, keys and values: in another
    order, or as if each came as one block."""
    several: list[list[Operation]] = []
    for operation in operations:
        x, y = next(iter(operation.args), None), operation.output
        if operation.name in ("getitem", "select") and isinstance(x, torch.Tensor) and y.ndim == x.ndim - 1 and y.ndim > 2:
            those = next((each for each in several if torch.equal(each[0].args[0], x)), None)
            several += [those := []] if those is None else []
            those.append(operation)
    for those in several:
        x, parts = those[0].args[0], [each.output for each in those]
        for axis in (axis for axis in range(1, x.ndim) if 1 < len(parts) == x.shape[axis] <= MOST_BLOCKS):
            if torch.equal(torch.stack(parts, axis), x):
                said = f"computes {those[0].source} and the like"
                for order in [*itertools.permutations(range(len(parts)))][1:]:
                    says = f"takes them in the order {', '.join(map(str, order))}"
                    yield Alteration(said, says, partial(sliced_otherwise, those, partial(in_another_order, axis, order)))
                if axis > 1:
                    yield Alteration(said, "has each in one block", partial(sliced_otherwise, those, partial(in_blocks, axis)))


def in_another_order(axis: int, order: tuple[int, ...], x: torch.Tensor) -> list[torch.Tensor]:
    """Along that axis."""
    return [x.select(axis, i) for i in order]


def in_blocks(axis: int, x: torch.Tensor) -> list[torch.Tensor]:
    """As if the axis came before the one in front of it."""
    many, before = x.shape[axis], x.shape[axis - 1]
    return [*x.flatten(axis - 1, axis).unflatten(axis - 1, (many, before)).unbind(axis - 1)]


def split_otherwise(operation: Operation, cut: Cut) -> Altered:
    """Inside, a split gives other parts."""
    return operation.inside(lambda f, a, k, n: tuple(cut(a[0])))


def slices(operations: list[Operation]) -> Iterator[Packed]:
    """Of slices of one array that are the whole of it, one behind the other."""
    several: list[list[Operation]] = []
    for operation in operations:
        x, part = next(iter(operation.args), None), operation.output
        if operation.name in ("getitem", "narrow") and isinstance(x, torch.Tensor) and cut_of(x, part):
            those = next((each for each in several if torch.equal(each[0].args[0], x)), [])
            if not those:
                several.append(those)
            those.append(operation)
    for those in several:
        x, parts = those[0].args[0], [each.output for each in those]
        sizes, axes = zip(*(cut_of(x, part) or (0, 0) for part in parts), strict=True)
        fit = 1 < len(those) <= MOST_PARTS and len({*axes}) == 1 and sum(sizes) == x.shape[axes[0]]
        if fit and torch.equal(torch.cat(parts, axes[0]), x):
            yield Packed(f"{those[0].source} and the like", axes[0], [*sizes], partial(sliced_otherwise, those))


def sliced_otherwise(those: list[Operation], cut: Cut) -> Altered:
    """Inside, slices take other entries."""
    return Altered({each.place: lambda f, a, k, n, i=i: cut(a[0])[i] for i, each in enumerate(those)})


def products(operations: list[Operation]) -> Iterator[Packed]:
    """Of one array with several weights, as those that make keys and values: a port may make them at once."""
    several: list[list[Operation]] = []
    for operation in (each for each in operations if each.name == "linear"):
        alike = (
            each for each in several if same(each[0].args[0], operation.args[0]) and len(each[0].runs) == len(operation.runs)
        )
        if (those := next(alike, None)) is None:
            several.append(those := [])
        those.append(operation)
    for those in several:
        for some in (those, those[-2:])[: len(those) - 1]:
            if len(some) <= MOST_BLOCKS:
                sizes = [each.output.shape[-1] for each in some]
                yield Packed(f"{some[0].source} and the like", some[0].output.ndim - 1, sizes, partial(made_at_once, some))


def made_at_once(those: list[Operation], cut: Cut) -> Altered:
    """Inside, products are cut out of all of them otherwise."""

    def part(i: int, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
        runs = [(each.function, each.runs[n]) for each in those]
        return cut(torch.cat([made(args[0], *run.args[1:], **run.kwargs) for made, run in runs], -1))[i]

    return Altered({each.place: partial(part, i) for i, each in enumerate(those)})


def cut_of(x: torch.Tensor, part: Any) -> tuple[int, int] | None:
    """How many entries a part has, and along which axis, if it has fewer along one."""
    if not isinstance(part, torch.Tensor) or x.ndim != part.ndim:
        return None
    fewer = [axis for axis in range(x.ndim) if part.shape[axis] < x.shape[axis]]
    return (part.shape[fewer[0]], fewer[0]) if len(fewer) == 1 else None
