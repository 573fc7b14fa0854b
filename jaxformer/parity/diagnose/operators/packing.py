"""Mutations of how several arrays are packed in one: parts in another order, in groups or interleaved, as queries, keys and
values that are packed head by head."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from jaxformer.parity.diagnose.computes import behind, of_first
from jaxformer.parity.diagnose.mutation import Change, Proposal, Target, grouped, propose
from jaxformer.parity.diagnose.numbers_and_orders import arranged
from jaxformer.parity.diagnose.operators.permute import is_reshape, reorders
from jaxformer.parity.diagnose.trace import Op, Rewrite, at_once, same

MOST_BLOCKS, MOST_PARTS = 4, 9
"""Largest number of parts whose orders are all tried, and of parts that an array may be cut into."""
MOST_GROUPS = 16
"""Largest number of ways to form groups, heads as a rule, that are tried."""
INNER_PARTS = (2, 3, 4)
"""Numbers of parts that one axis may pack, as queries, keys and values."""
SPLITS = ("chunk", "split", "split_with_sizes", "tensor_split")
WHERE = {
    "one": "has whole blocks one after the other in {0}",
    "several": "has {0} and the parts beside it as whole blocks",
    "everywhere": "has {0} and the parts beside it as whole blocks, everywhere",
}


def ordered(args: dict[str, Any]) -> str:
    """Words for parts in another order."""
    return f"takes them {arranged(args['order'])}"


ORDERED = Change("packing.ordered", lambda args: f"packs them {arranged(args['order'])}", WHERE)
EXCHANGED = Change("packing.exchanged", "has entries {one} to {one_end} and {other} to {other_end} exchanged", WHERE)
GROUPED = Change("packing.grouped", "packs them head by head: {groups} groups, each with a piece of every part", WHERE)
IN_TURNS = Change("packing.in_turns", "packs one entry of each in turns", WHERE)
TAKEN = Change("packing.taken", ordered, "takes {0} and those beside it in order")
ONE_BLOCK = Change("packing.one_block", "takes each from one whole block", "takes {0} and those beside it head by head")
INNER = Change("packing.inner_parts", "has {parts} parts of axis {inner} before axis {axis}: in blocks, not head by head")
Cut = Callable[[torch.Tensor], Sequence[torch.Tensor]]
"""cut(array) -> its parts."""


class Packed(NamedTuple):
    """Parts of one array that lie one after another along an axis."""

    targets: tuple[Target, ...]
    where: str
    axis: int
    sizes: list[int]
    rewrite: Callable[[Cut], Rewrite]
    """rewrite(cut) -> the rewrite in which `cut` gives the parts."""

    def proposal(self, change: Change, cut: Cut, **args: Any) -> Proposal:
        """Propose to cut out the parts by `cut`."""
        return propose(change, self.targets, partial(self.rewrite, cut), how=self.where, **args)

    def orders(self) -> Iterator[Proposal]:
        """Mutations of the order of the parts, if there are few."""
        for order in reorders(range(len(self.sizes))) if len(self.sizes) <= MOST_BLOCKS else ():
            yield self.proposal(ORDERED, partial(in_order, self, order), order=order)

    def groups(self) -> Iterator[Proposal]:
        """Mutations in which the parts are packed in groups, each with a piece of every part, or entry by entry."""
        most = math.gcd(*self.sizes)
        for groups in [each for each in range(2, most + 1) if most % each == 0][:MOST_GROUPS]:
            cut = partial(in_groups, self, groups)
            yield self.proposal(GROUPED, cut, groups=groups) if groups < max(self.sizes) else self.proposal(IN_TURNS, cut)


def proposals(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of slices, splits and products of one array."""
    taken = [*slices(operations)]
    for packed in (*taken, *everywhere(taken)):
        yield from packed.orders()
    yield from picks(operations)
    for packed in (*taken, *splits(operations), *products(operations)):
        yield from packed.groups()


def blocks(op: Op) -> Iterator[Proposal]:
    """Mutations of a split into blocks of different sizes: their order, and two ranges of entries exchanged."""
    for packed in splits([op]) if op.name in ("split", "split_with_sizes") else ():
        sizes = packed.sizes
        if len({*sizes}) > 1 and len(sizes) <= MOST_BLOCKS:
            yield from packed.orders()
            for i, (one, other) in enumerate(pairwise(sizes)):
                size, first = min(one, other), sum(sizes[:i])
                second = first + one
                places = {(first, second), (second - size, second), (first, second + other - size)} if one != other else ()
                for mine, its in places:
                    ends = {"one": mine, "one_end": mine + size - 1, "other": its, "other_end": its + size - 1}
                    yield packed.proposal(EXCHANGED, partial(exchanged, packed, (mine, its, size)), **ends)


def inner_parts(op: Op) -> Iterator[Proposal]:
    """Mutations of an axis that is split in two, the second of which packs several parts: these lie before the first
    instead."""
    before, after = (op.args[0].shape, op.output.shape) if is_reshape(op) else ((), ())
    for axis in range(len(after) - 1) if len(after) > len(before) else ():
        for parts in INNER_PARTS:
            if after[axis] > 1 and after[axis + 1] > parts and after[axis + 1] % parts == 0:
                yield op.instead(INNER, behind(partial(in_blocks, axis, parts)), parts=parts, inner=axis + 1, axis=axis)


def in_blocks(axis: int, parts: int, y: torch.Tensor) -> torch.Tensor:
    """Read axes (part, a, b) where torch reads (a, part, b)."""
    sizes = [*y.shape]
    x = y.reshape(*sizes[:axis], parts, sizes[axis], sizes[axis + 1] // parts, *sizes[axis + 2 :])
    return x.transpose(axis, axis + 1).reshape(sizes)


def in_order(packed: Packed, order: tuple[int, ...], x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Cut out, in torch's order, the parts of an array in which they lie in the order `order`."""
    parts = x.split([packed.sizes[i] for i in order], packed.axis)
    return [parts[order.index(i)] for i in range(len(order))]


def in_groups(packed: Packed, groups: int, x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Cut out the parts of an array that packs them in groups, each with a piece of every part."""
    parts = x.unflatten(packed.axis, (groups, -1)).split([size // groups for size in packed.sizes], packed.axis + 1)
    return [part.flatten(packed.axis, packed.axis + 1) for part in parts]


def exchanged(packed: Packed, places: tuple[int, int, int], x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Cut out the parts of an array with two ranges of entries exchanged: `places` has the two first entries and the number in
    each range."""
    mine, its, size = places
    order = [*range(x.shape[packed.axis])]
    order[mine : mine + size], order[its : its + size] = order[its : its + size], order[mine : mine + size]
    return x.index_select(packed.axis, torch.tensor(order)).split(packed.sizes, packed.axis)


def everywhere(several: list[Packed]) -> Iterator[Packed]:
    """Slices in several places with parts of the same sizes, as the rotated part and the rest of queries and of keys."""
    for alike in grouped(several, lambda packed: (packed.axis, *packed.sizes)).values():
        if len(alike) > 1:
            targets = tuple(target for packed in alike for target in packed.targets)
            yield alike[0]._replace(
                targets=targets,
                where="everywhere",
                rewrite=lambda cut, alike=alike: at_once(each.rewrite(cut) for each in alike),
            )


def splits(operations: list[Op]) -> Iterator[Packed]:
    """Parts that one call of `split`, `chunk` and the like gives."""
    for op in operations:
        if op.name in SPLITS and (found := cut_of(op.args[0], op.output)):
            yield Packed((op.target,), "one", *found, lambda cut, op=op: op.rewrite(of_first(lambda x: tuple(cut(x)))))


def slices(operations: list[Op]) -> Iterator[Packed]:
    """Slices of one array that, one after another, make up the whole of it."""
    those = [op for op in operations if op.name in ("getitem", "narrow") and op.args and cut_of(op.args[0], [op.output])]
    for alike in of_one_array(those):
        x, parts = alike[0].args[0], [op.output for op in alike]
        if found := cut_of(x, parts):
            axis, sizes = found
            if sum(sizes) == x.shape[axis] and torch.equal(torch.cat(parts, axis), x):
                yield Packed(targets_of(alike), "several", axis, sizes, partial(sliced_otherwise, alike))


def picks(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of an axis of few entries that are taken one by one, as `x[..., 0, :]` of packed queries, keys and values: in
    another order, or as if each entry were one whole block."""
    those = [op for op in operations if op.name in ("getitem", "select") and is_pick(op)]
    for alike in of_one_array(those):
        x, parts = alike[0].args[0], [op.output for op in alike]
        fits = 1 < len(parts) <= MOST_BLOCKS and len({part.shape for part in parts}) == 1
        for axis in range(1, x.ndim) if fits else ():
            if same(torch.stack(parts, axis), x):
                for order in reorders(range(len(parts))):
                    edits = partial(sliced_otherwise, alike, partial(entries_in_order, axis, order))
                    yield propose(TAKEN, targets_of(alike), edits, axis=axis, order=order)
                if axis > 1:
                    edits = partial(sliced_otherwise, alike, partial(as_blocks, axis))
                    yield propose(ONE_BLOCK, targets_of(alike), edits, axis=axis)


def is_pick(op: Op) -> bool:
    """True if an operation takes one entry of an axis."""
    x = next(iter(op.args), None)
    return isinstance(x, torch.Tensor) and x.ndim - 1 == op.output.ndim > 2


def entries_in_order(axis: int, order: tuple[int, ...], x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Entries of an axis in another order."""
    return [x.select(axis, i) for i in order]


def as_blocks(axis: int, x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Entries of an axis, read as if the axis came before the one in front of it."""
    many, before = x.shape[axis], x.shape[axis - 1]
    return x.flatten(axis - 1, axis).unflatten(axis - 1, (many, before)).unbind(axis - 1)


def sliced_otherwise(several: list[Op], cut: Cut) -> Rewrite:
    """Rewrite in which slices give the parts of `cut`."""
    return Rewrite({op.place: of_first(lambda x, i=i: cut(x)[i]) for i, op in enumerate(several)})


def products(operations: list[Op]) -> Iterator[Packed]:
    """Products (`linear`) of one array with several weights, as those that make keys and values: a port may compute them as
    one."""
    for alike in of_one_array([op for op in operations if op.name == "linear"], as_often=True):
        for some in (alike, alike[-2:])[: len(alike) - 1]:
            if len(some) <= MOST_BLOCKS:
                sizes = [op.output.shape[-1] for op in some]
                yield Packed(targets_of(some), "several", some[0].output.ndim - 1, sizes, partial(made_at_once, some))


def made_at_once(several: list[Op], cut: Cut) -> Rewrite:
    """Rewrite in which all products are computed as one, and `cut` gives each."""
    return Rewrite({op.place: partial(part_of, several, cut, i) for i, op in enumerate(several)})


def part_of(several: list[Op], cut: Cut, i: int, function: Any, args: Any, kwargs: Any, n: int) -> torch.Tensor:
    """Compute all products as one, and cut out part `i`."""
    made = [op.function(args[0], *op.runs[n].args[1:], **op.runs[n].kwargs) for op in several]
    return cut(torch.cat(made, -1))[i]


def of_one_array(operations: list[Op], as_often: bool = False) -> list[list[Op]]:
    """Group operations by their first argument, and if `as_often` by their number of runs."""
    found: list[list[Op]] = []
    for op in operations:
        alike = (
            each for each in found if same(each[0].args[0], op.args[0]) and (not as_often or len(each[0].runs) == len(op.runs))
        )
        if (those := next(alike, None)) is None:
            found.append(those := [])
        those.append(op)
    return found


def targets_of(several: list[Op]) -> tuple[Target, ...]:
    """Targets of several operations."""
    return tuple(op.target for op in several)


def cut_of(x: Any, parts: Sequence[Any]) -> tuple[int, list[int]] | None:
    """Axis along which parts are shorter than an array, and their sizes; None if that is not one axis, or if there are too
    many parts."""
    if not all(isinstance(each, torch.Tensor) and each.ndim == x.ndim for each in (x, *parts)) or len(parts) > MOST_PARTS:
        return None
    axes = {tuple(axis for axis in range(x.ndim) if part.shape[axis] < x.shape[axis]) for part in parts}
    if len(axes) != 1 or [len(each) for each in axes] != [1]:
        return None
    ((axis,),) = axes
    sizes = [part.shape[axis] for part in parts]
    return (axis, sizes) if all(sizes) else None
