"""What may be otherwise in attention, whatever code computes it: how heads are split, packed and merged, which array is which,
how scores become weights."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import permutations

import torch

from jaxformer.parity.explain.alterations import weighing
from jaxformer.parity.explain.alterations.altered import Alteration, Dial, Inside
from jaxformer.parity.explain.alterations.attention_cores import After, Core, Tensors, cores
from jaxformer.parity.explain.alterations.of_modules import held
from jaxformer.parity.explain.alterations.of_operations import instead, with_operand
from jaxformer.parity.explain.alterations.operations import Operation
from jaxformer.parity.explain.alterations.rerun import Rerun

NAMES = ("queries", "keys", "values")
OUTPUT = "what is gathered"
LAYOUTS = ("3NH", "N3H", "NH3", "3HN", "H3N", "HN3")
"""Of what three projections in one give: 3 arrays, N heads, H units."""
WHERE = (
    *((each,) for each in (*NAMES, OUTPUT)),
    NAMES,
    (*NAMES, OUTPUT),
    NAMES[:2],
    NAMES[1:],
    (NAMES[0], OUTPUT),
    (NAMES[2], OUTPUT),
)
"""Which arrays may have their heads otherwise."""
MOST_CORES = 4
CAPS = (50.0, 30.0, 20.0, 10.0, 5.0, 2.0)
"""From which a cap of scores is searched for."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration | Dial]:
    """The plain ones first."""
    matter = {each.place for each in rerun.operations}
    found = [core for core in cores(rerun.listed) if core.softmax.place in matter][:MOST_CORES]  # its values may not be read
    for core in found:
        yield from of_weights(core)
        yield from of_slopes(core, rerun.operations)
    yield from of_projections(rerun)
    for core in found:
        yield from of_roles(core)
    for core in found:
        yield from of_heads(core)
    for core in found:
        yield from of_packing(core, rerun.operations)


def of_weights(core: Core) -> Iterator[Alteration | Dial]:
    """Another scale, masks that come late or are weak, another axis, something else added to the scores."""
    _, added, kept = core.parts
    torch_says = f"computes {core.softmax.source}"

    def by(says: str, weigh: weighing.Weigh) -> Alteration:
        return Alteration(torch_says, says, lambda: core.with_weights(weigh))

    def scaled(c: float) -> Inside:
        return core.with_weights(lambda x, added, seen: weighing.softmax(torch.where(seen, c * x, x), added, seen))

    def capped(c: float) -> Inside:
        return core.with_weights(lambda x, added, seen: weighing.softmax(c * torch.tanh(x / c), added, seen))

    yield Dial(torch_says, "has {} times its scores", 1.0, scaled)
    yield Dial(torch_says, "has its scores capped at {}: c tanh(scores / c)", 50.0, capped, seeds=CAPS)
    if bool((~kept & kept.any(-1, keepdim=True)).any()):
        yield by("masks behind the softmax", weighing.masked_behind)
        for says, way in (("has {} for masked scores", weighing.filled), ("has {} on masked scores", weighing.lowered)):
            for number in weighing.FILLS:
                yield by(says.format(f"{number:g}"), partial(way, number))
            yield Dial(torch_says, says, -10.0, partial(filled, core, way), seeds=(-20.0, -10.0, -5.0, -2.0, -1.0))
    for axis, says in ((-2, "queries"), (-3, "heads")):
        yield by(f"has its softmax over {says}", partial(weighing.softmax, axis=axis))
    for says, weigh in weighing.INSTEAD.items():
        yield by(says, weigh)
    if added.any():
        turned = partial(weighing.with_added, lambda x: x.mT if x.shape[-1] == x.shape[-2] else x)
        yield by("adds to the scores of keys what is for queries", turned)

        def times(c: float) -> Inside:
            return core.with_weights(partial(weighing.with_added, lambda x: c * x))

        yield Dial(torch_says, "has {} times what is added to the scores", 1.0, times)


def filled(core: Core, way: Callable[..., torch.Tensor], number: float) -> Inside:
    """Inside, a number masks the scores."""
    return core.with_weights(partial(way, number))


def of_slopes(core: Core, operations: list[Operation]) -> Iterator[Alteration]:
    """Other numbers of each head in what is added to scores, as ALiBi's."""
    if not core.first:
        for says, change in weighing.slopes(core.parts[1]).items():
            weigh = partial(weighing.with_added, change)
            yield instead(core.softmax, f"has slopes {says}", lambda f, a, k, n, w=weigh: weighing.fused_attention(w, a, k))
    scores = core.softmax.output.shape
    for operation in operations if core.first else ():
        if operation.name in ("add", "sub") and operation.output.shape == scores:
            for i, x in enumerate(operation.args[:2]):
                for says, change in (weighing.slopes(x) if isinstance(x, torch.Tensor) else {}).items():
                    yield instead(operation, f"has slopes {says}", partial(with_operand, i, change))


def of_projections(rerun: Rerun) -> Iterator[Alteration]:
    """A third of a bias that queries, keys and values have in one."""
    for name, module in rerun.module.named_modules():
        bias = getattr(module, "in_proj_bias", None)
        if isinstance(bias, torch.Tensor):
            path = f"{name}.in_proj_bias" if name else "in_proj_bias"
            thirds = bias.chunk(3)
            for i, says in enumerate(NAMES):
                other = torch.cat([0 * x if i == j else x for j, x in enumerate(thirds)])
                yield Alteration(f"{path} as it is", f"{path} without that of {says}", partial(held, bias, other))
            other = torch.cat([thirds[0], thirds[2], thirds[1]])
            yield Alteration(f"{path} as it is", f"{path} with those of keys and values exchanged", partial(held, bias, other))


def of_roles(core: Core) -> Iterator[Alteration]:
    """Queries, keys and values taken for one another."""
    q, k, v = core.heads
    if not core.is_once:
        return
    for order in [*permutations(range(3))][1:]:
        if all((q, k, v)[i].shape == x.shape for i, x in zip(order, (q, k, v), strict=True)):
            moved = [f"{NAMES[i]} for {name}" for i, name in zip(order, NAMES, strict=True) if NAMES[i] != name]
            yield Alteration(
                f"computes {core.softmax.source}",
                f"takes {', '.join(moved)}",
                lambda order=order: core.with_heads(lambda heads: tuple(heads[i] for i in order), same),
            )


def of_packing(core: Core, operations: list[Operation]) -> Iterator[Alteration]:
    """Queries, keys and values that stand in one row in another order."""
    q, k, v = core.heads
    if not core.is_once or not q.shape == k.shape == v.shape:
        return
    given = row_of((q, k, v), "N3H")
    own = "N3H" if any(holds(each.output, given) for each in operations) else "3NH"
    for other in LAYOUTS:
        if other != own:
            change = partial(packed, own, other)
            said = f"packs queries, keys and values {words(own)}", f"packs them {words(other)}"
            yield Alteration(*said, lambda change=change: core.with_heads(change, same))


def holds(output: object, row: torch.Tensor) -> bool:
    """Whether an operation gave it."""
    return isinstance(output, torch.Tensor) and output.shape == row.shape and torch.equal(output, row)


def words(layout: str) -> str:
    """'by heads, then by which of the 3, then by units'"""
    names = {"3": "which of the 3", "N": "heads", "H": "units"}
    return ", then ".join(f"by {names[letter]}" for letter in layout)


def same(x: torch.Tensor) -> torch.Tensor:
    """As it is."""
    return x


AXES = {"3": 0, "N": 2, "H": 4}


def row_of(heads: Tensors, layout: str) -> torch.Tensor:
    """Three arrays in one row `B T D`."""
    return torch.stack(heads).permute(1, 3, *(AXES[letter] for letter in layout)).flatten(2)


def packed(own: str, other: str, heads: Tensors) -> Tensors:
    """Three arrays that stand in one row in one layout, read in another one."""
    sizes = {letter: torch.stack(heads).shape[axis] for letter, axis in AXES.items()}
    row = row_of(heads, own)
    read = row.reshape(*row.shape[:2], *(sizes[letter] for letter in other))
    three, many, units = (2 + other.index(letter) for letter in "3NH")
    return tuple(read.permute(three, 0, many, 1, units))


def of_heads(core: Core) -> Iterator[Alteration]:
    """Heads that are split or merged in another way, or stand in another order."""
    many = core.heads[0].shape[1]
    ways: dict[str, tuple[After, After]] = {
        "unit by unit": (unit_by_unit, merged_unit_by_unit),
        "without moving their axis": (unmoved, merged_unmoved),
    }
    if many > 1:
        ways["from the last to the first"] = backwards, backwards
    for n in range(2, many):
        if many % n == 0:
            every = partial(every_nth, n)
            order = every(torch.arange(many).reshape(1, -1, 1, 1)).flatten().tolist()
            ways[f"in the order {', '.join(map(str, order))}"] = every, every
    for says, (split, merge) in ways.items():
        for where in WHERE:
            if many > 1:
                yield Alteration(
                    f"splits and merges heads in {core.softmax.source}",
                    f"has the heads of {' and '.join(where)} {says}",
                    partial(with_heads, core, where, split, merge),
                )


def with_heads(core: Core, where: tuple[str, ...], split: After, merge: After) -> Inside:
    """Inside, some arrays have their heads otherwise."""

    def change(heads: Tensors) -> Tensors:
        return tuple(split(x) if name in where else x for name, x in zip(NAMES, heads, strict=True))

    return core.with_heads(change, merge if OUTPUT in where else same)


def unit_by_unit(x: torch.Tensor) -> torch.Tensor:
    """A row whose entries are the units of all heads in turns."""
    b, n, t, h = x.shape
    return x.transpose(1, 2).reshape(b, t, h, n).permute(0, 3, 1, 2)


def merged_unit_by_unit(x: torch.Tensor) -> torch.Tensor:
    """The same of an output."""
    b, n, t, h = x.shape
    return x.permute(0, 2, 3, 1).reshape(b, t, n, h).transpose(1, 2)


def unmoved(x: torch.Tensor) -> torch.Tensor:
    """`B T N H` read as `B N T H`."""
    return x.transpose(1, 2).reshape(x.shape)


def merged_unmoved(x: torch.Tensor) -> torch.Tensor:
    """`B N T H` read as `B T N H`."""
    b, n, t, h = x.shape
    return x.reshape(b, t, n, h).transpose(1, 2)


def backwards(x: torch.Tensor) -> torch.Tensor:
    """Heads in the other order."""
    return x.flip(1)


def every_nth(n: int, x: torch.Tensor) -> torch.Tensor:
    """Heads in `n` groups, taken in turns."""
    return x.unflatten(1, (n, -1)).transpose(1, 2).flatten(1, 2)
