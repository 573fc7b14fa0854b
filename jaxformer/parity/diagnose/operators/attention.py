"""Mutations of attention: how weights come from scores, the roles of queries, keys and values, and how heads are split, packed
and merged."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import permutations
from operator import itemgetter, mul
from typing import Any

import torch

from jaxformer.parity.diagnose.attention_cores import After, Core, Tensors, cores
from jaxformer.parity.diagnose.computes import with_operand
from jaxformer.parity.diagnose.modules import held
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose, words_of
from jaxformer.parity.diagnose.numbers_and_orders import arranged
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, same
from jaxformer.parity.diagnose.weighing import BY_NUMBER, IN_SMALLER_TYPES, INSTEAD, Weigh, slopes_instead

ARRAYS = {"q": "queries", "k": "keys", "v": "values", "o": "what is gathered"}
NAMES = tuple(ARRAYS[letter] for letter in "qkv")
WHERE = ("q", "k", "v", "o", "qkv", "qkvo", "qk", "kv", "qo", "vo")
"""Arrays whose heads are rearranged together."""
LAYOUTS = ("3NH", "N3H", "NH3", "3HN", "H3N", "HN3")
"""Orders of axes in which three projections are packed in one row: 3 arrays, N heads, H units."""
AXES = {"3": 0, "N": 2, "H": 4}
"""Axis of each letter in three stacked arrays, `3 B N T H`."""
MOST_CORES = 4
FILLS = (-1e4, -1e9, -100.0, -1e3)
"""Finite numbers that may mask scores; those nearer to 0 are solved for."""
SPLITS: dict[str, tuple[After, After]] = {
    "by_unit": (
        lambda x: x.transpose(1, 2).flatten(2).unflatten(2, (-1, x.shape[1])).permute(0, 3, 1, 2),
        lambda x: x.permute(0, 2, 3, 1).flatten(2).unflatten(2, (x.shape[1], -1)).transpose(1, 2),
    ),
    "unmoved": (lambda x: x.transpose(1, 2).reshape(x.shape), lambda x: x.reshape(x.transpose(1, 2).shape).transpose(1, 2)),
    "backwards": (lambda x: x.flip(1), lambda x: x.flip(1)),
}
"""Other ways to split heads and to merge them, as functions of `B N T H`."""


def taken(args: Mapping[str, Any]) -> str:
    """Words such as 'takes queries for keys, keys for queries'."""
    pairs = zip(args["order"], NAMES, strict=True)
    return "takes " + ", ".join(f"{other} for {name}" for other, name in pairs if other != name)


def by_axes(layout: str) -> str:
    """Words such as 'as (heads, 3, width)'."""
    return f"as ({', '.join({'3': '3', 'N': 'heads', 'H': 'width'}[each] for each in layout)})"


def headed(side: int, args: Mapping[str, Any]) -> str:
    """Words for what torch (side 0) or jax (side 1) does with heads."""
    words = HEADED[args.get("groups") or args["how"]][side]
    return words.replace("ORDER", arranged(args["order"])) if "order" in args else words


HEADED = {
    "tiled": (
        "repeats each head of {arrays:and} {times} times, 0 0 1 1",
        "tiles them, 0 1 0 1 (torch's is `jnp.repeat`)",
    ),
    "repeated": (
        "tiles the heads of {arrays:and} {times} times, 0 1 0 1",
        "repeats each, 0 0 1 1 (torch's is `jnp.tile`)",
    ),
    "by_unit": ("reshapes {arrays:and} as (heads, width) at {0}", "as (width, heads)"),
    "unmoved": ("transposes heads and positions of {arrays:and} at {0}", "reshapes without that transposition"),
    "backwards": ("has the heads of {arrays:and} in order at {0}", "has them from the last to the first"),
    "in_order": ("has the heads of {arrays:and} in order at {0}", "has them ORDER"),
}
"""Words for what torch and jax do with heads. 'tiled' and 'repeated': heads of keys and values serve several queries each
(grouped-query attention)."""
SOLVED = Change("attention.solved", {how: words for how, (words, *_) in BY_NUMBER.items()})
HIDDEN = Change("attention.hidden", {how: BY_NUMBER[how][0].replace("{value}", "{c:g}") for how in ("filled", "lowered")})
WEIGHTS = Change("attention.weights", words_of(INSTEAD))
SLOPES = Change(
    "attention.slopes",
    {
        "flipped": "has ALiBi's slopes from the last head to the first",
        "powers": "has ALiBi's slopes as 2^(-8 i / {n}), i from 1",
        "powers_from_one": "has ALiBi's slopes as 2^(-8 i / {n}), i from 0",
    },
)
BIAS_WITHOUT = Change("attention.bias_without", "leaves out the bias of {array}", "adds {0}")
BIAS_EXCHANGED = Change("attention.bias_exchanged", "exchanges the biases of keys and values", "adds {0}")
ROLES = Change("attention.roles", taken, "takes queries, keys and values as named at {0}")
HEADS = Change("attention.heads", partial(headed, 1), partial(headed, 0))
PACKED = Change(
    "attention.packed",
    lambda args: by_axes(args["layout"]),
    lambda args: f"has queries, keys and values packed {by_axes(args['own'])}",
)


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of each attention core in the call, the plain ones first."""
    matter = {op.place for op in replay.operations}
    # among all operations: the array, such as the weights, may not depend on the product with the values
    found = [core for core in cores(replay.listed) if core.softmax.place in matter][:MOST_CORES]
    for core in found:
        yield from weights(core)
        yield from slopes(core, replay.operations)
    yield from biases(replay)
    yield from (proposal for core in found for proposal in roles(core))
    yield from (proposal for core in found for proposal in heads(core))
    yield from (proposal for core in found for proposal in packings(core, replay.operations))


def weights(core: Core) -> Iterator[Proposal]:
    """Mutations of how weights come from scores: another scale, a soft cap, a mask after the softmax or of finite numbers,
    another axis, a sink, another function, another bias."""
    scores = core.scores
    yield solved(core, "scaled")
    yield solved(core, "capped")
    if bool((~scores.seen & scores.seen.any(-1, keepdim=True)).any()):
        yield reweighed(core, WEIGHTS, INSTEAD["masked_behind"][1], how="masked_behind")
        for how in ("filled", "lowered"):
            for c in FILLS:
                yield reweighed(core, HIDDEN, partial(BY_NUMBER[how][-1], c), how=how, c=c)
            yield solved(core, how)
    turned = ["turned"] if scores.added.any() else []
    for how in (
        *("over_queries", "over_queries_nan", "over_heads", "over_rows", "sink", "sigmoid", "relu"),
        *turned,
        *IN_SMALLER_TYPES,
    ):
        yield reweighed(core, WEIGHTS, INSTEAD[how][1], how=how)
    if scores.added.any():
        yield solved(core, "added")


def reweighed(core: Core, change: Change, weigh: Weigh, **args: Any) -> Proposal:
    """Propose weights that `weigh` computes from the scores."""
    return propose(change, core.softmax.target, partial(core.with_weights, weigh), **args)


def solved(core: Core, how: str) -> Proposal:
    """Propose weights with a free parameter."""
    _, free, weigh = BY_NUMBER[how]
    return propose(SOLVED, core.softmax.target, lambda c: core.with_weights(partial(weigh, c)), free, how=how)


def slopes(core: Core, operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of the factor of each head in what is added to the scores, as ALiBi's slopes."""
    if core.is_fused:
        for how, args, factor in slopes_instead(core.scores.added):
            yield reweighed(core, SLOPES, partial(BY_NUMBER["added"][-1], factor), how=how, **args)
        return
    for op in operations:
        if op.name in ("add", "sub") and op.output.shape == core.softmax.output.shape:
            for i, x in enumerate(op.args[:2]):
                for how, args, factor in slopes_instead(x):
                    yield op.instead(SLOPES, with_operand(i, partial(mul, factor)), how=how, operand=i, **args)


def biases(replay: Replay) -> Iterator[Proposal]:
    """Mutations of `in_proj_bias`, which holds the biases of queries, keys and values: one of the three left out, or those of
    keys and values exchanged."""
    for name, module in replay.module.named_modules():
        bias = getattr(module, "in_proj_bias", None)
        if isinstance(bias, torch.Tensor):
            path = f"{name}.in_proj_bias" if name else "in_proj_bias"
            for i, array in enumerate(NAMES):
                yield propose(BIAS_WITHOUT, path, partial(held, bias, partial(without_third, i)), array=array)
            yield propose(BIAS_EXCHANGED, path, partial(held, bias, lambda x: torch.cat([x.chunk(3)[i] for i in (0, 2, 1)])))


def without_third(i: int, x: torch.Tensor) -> torch.Tensor:
    """Set the third `i` of a vector to zeros."""
    return torch.cat([0 * part if i == j else part for j, part in enumerate(x.chunk(3))])


def roles(core: Core) -> Iterator[Proposal]:
    """Mutations in which queries, keys and values are taken for one another."""
    arrays = core.heads
    for order in [*permutations(range(3))][1:] if core.is_once else ():
        if all(arrays[i].shape == x.shape for i, x in zip(order, arrays, strict=True)):
            edit = partial(core.with_heads, itemgetter(*order))
            yield propose(ROLES, core.softmax.target, edit, order=tuple(NAMES[i] for i in order))


def heads(core: Core) -> Iterator[Proposal]:
    """Mutations in which heads are split or merged in another way, or stand in another order."""
    many = core.heads[0].shape[1]
    ways = [(how, {}, *both) for how, both in SPLITS.items()] if many > 1 else []
    for every in (partial(every_nth, n) for n in range(2, many) if many % n == 0):
        order = every(torch.arange(many).reshape(1, -1, 1, 1)).flatten().tolist()
        ways.append(("in_order", {"order": order}, every, every))
    for how, args, split, merge in ways:
        for where in WHERE:
            edit = partial(core.with_heads, partial(those_split, split, where), merge if "o" in where else None)
            alike = grouped(core, where, order[1]) if (order := args.get("order")) else {}
            those = tuple(map(ARRAYS.get, where))
            yield propose(HEADS, core.softmax.target, edit, how=how, arrays=those, **args, **alike)


def grouped(core: Core, where: str, times: int) -> dict[str, Any]:
    """Arguments of the words where torch repeats heads of keys and values: `groups`, a key of `HEADED`, and `times`. Empty
    where it does not, or where other arrays are rearranged too."""
    shared = [x for letter, x in zip("qkv", core.heads, strict=True) if letter in where and letter != "q"]
    if len(shared) != len(where):
        return {}
    parts = [x.unflatten(1, (-1, times)) for x in shared]
    for groups, axis in (("tiled", 2), ("repeated", 1)):
        if all(torch.equal(x, x.narrow(axis, 0, 1).expand_as(x)) for x in parts):
            return {"groups": groups, "times": parts[0].shape[axis]}
    return {}


def those_split(split: After, where: str, arrays: Tensors) -> Tensors:
    """Queries, keys and values, with `split` applied to those named in `where`."""
    return tuple(split(x) if letter in where else x for letter, x in zip("qkv", arrays, strict=True))


def every_nth(n: int, x: torch.Tensor) -> torch.Tensor:
    """Take heads from `n` groups in turns: for `n` = 2, heads 0 3 1 4 2 5."""
    return x.unflatten(1, (n, -1)).transpose(1, 2).flatten(1, 2)


def packings(core: Core, operations: list[Op]) -> Iterator[Proposal]:
    """Mutations in which a row that packs queries, keys and values is read in another order of axes."""
    arrays = core.heads
    if not core.is_once or len({x.shape for x in arrays}) > 1:
        return
    row = row_of(arrays, "N3H")
    own = "N3H" if any(same(op.output, row) for op in operations) else "3NH"
    for layout in LAYOUTS:
        if layout != own:
            edit = partial(core.with_heads, partial(packed, own, layout))
            yield propose(PACKED, core.softmax.target, edit, own=own, layout=layout)


def row_of(arrays: Tensors, layout: str) -> torch.Tensor:
    """Pack three arrays in one row `B T D`, in the order of axes `layout`."""
    return torch.stack(arrays).permute(1, 3, *(AXES[letter] for letter in layout)).flatten(2)


def packed(own: str, layout: str, arrays: Tensors) -> Tensors:
    """Read three arrays in the order of axes `layout` from a row that packs them in the order `own`."""
    stacked = torch.stack(arrays)
    read = row_of(arrays, own).unflatten(2, [stacked.shape[AXES[letter]] for letter in layout])
    three, many, units = (2 + layout.index(letter) for letter in "3NH")
    return tuple(read.permute(three, 0, many, 1, units))
