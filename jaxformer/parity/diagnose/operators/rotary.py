"""Mutations of rotary and sinusoidal position embeddings: rates and positions of the tables, which units are pairs, what is
rotated."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import torch

from jaxformer.parity.diagnose.attention_cores import cores
from jaxformer.parity.diagnose.modules import given_by, name_of
from jaxformer.parity.diagnose.mutation import Change, Edit, Free, Proposal, propose, together, words_of
from jaxformer.parity.diagnose.operators.positions import Others, by_masks, other_positions, paired, worded
from jaxformer.parity.diagnose.operators.rotary_heads import Rotation
from jaxformer.parity.diagnose.operators.rotary_tables import (
    LAYOUTS,
    Pair,
    Rotary,
    Tables,
    joins,
    positions_axis,
    rotary_of,
    table_products,
)
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.rotary_rates import SMOOTHINGS, based, owned, plain_rates, scaling_of, smoothings
from jaxformer.parity.diagnose.trace import Op, Place, Rewrite, same
from jaxformer.parity.trace.call_sites import Site

RATES: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "inverted": ("multiplies them by base^(2i / width)", torch.reciprocal),
    "reversed": ("has the rates in reverse order, the slowest first", lambda rates: rates.flip(-1)),
    "shared": (
        "has one rate for two pairs: base^(-2 (i // 2) / width)",
        lambda rates: rates.repeat_interleave(2)[: len(rates)],
    ),
}
"""Functions of the rates that may stand for them, with words."""
AS_THEY_ARE = "has {0} positions as they are"
UNDIVIDED = Change("rotary.undivided", "does not divide them", owned)
BASE = Change("rotary.base", based, owned)
SOLVED_BASE = Change("rotary.solved_base", based, owned)
SMOOTHED = {which: Change(f"rotary.{which}", words, owned) for which, words in SMOOTHINGS.items()}
ROUNDED = Change("rotary.rounded", "rounds them to {type}", "has {0} {parts:and} in full precision")
OTHER_RATES = Change("rotary.rates", words_of(RATES), "multiplies {0} positions by base^(-2i / width)")
NONE = Change("rotary.none", "has none", "has {0} positions")
BACKWARDS = Change(
    "rotary.backwards", "rotates backwards: the sine has the other sign, or is exchanged with the cosine", "rotates forwards"
)
EXCHANGED = Change("rotary.exchanged", "exchanges the two", "has {0} cosines and sines", reroutes=True)
AMPLITUDE = Change("rotary.amplitude", "does not (1)", "multiplies cos and sin by {own:.6g} (attention factor)")
POSITIONS = Change("rotary.positions", worded("has positions"), AS_THEY_ARE)
SHIFTED = Change("rotary.shifted", "has positions {more:+d}", AS_THEY_ARE)
TIMES = Change("rotary.times", "multiplies positions by {factor}", AS_THEY_ARE)
SOLVED_TIMES = Change("rotary.solved_times", "multiplies positions by {value}", AS_THEY_ARE)
NOW = paired("has rotary pairs {0}")
PAIRS = Change("rotary.pairs", paired("has them {1}"), NOW)
TURNED = Change("rotary.pairs_turned", paired("has them {1} in `rotate_half`, but {0} in cos and sin"), NOW)
LAID = Change("rotary.pairs_laid", paired("has them {0} in `rotate_half`, but {1} in cos and sin"), NOW)
LATER = Change("rotary.later", "one position later", "rotates {0} by its positions")
EARLIER = Change("rotary.earlier", "one position earlier", "rotates {0} by its positions")
AGAIN = Change("rotary.again", "rotates it twice", "rotates {0} once")
UNROTATED = Change("rotary.unrotated", "does not", "rotates {0}")
ROTATED = Change("rotary.rotated", "rotates it", "does not rotate {0}, whose heads are values")
USE = Change(
    "rotary.use",
    {
        "none": "does not rotate these",
        "backwards": "rotates these backwards: the sine has the other sign",
        "exchanged": "exchanges cosines and sines for these",
        "later": "rotates these by positions + 1",
        "later_rolled": "rotates these by positions + 1, rolled around",
        "earlier": "rotates these by positions - 1",
        "earlier_rolled": "rotates these by positions - 1, rolled around",
    },
    "rotates by positions in {0}",
)
BASES = (10000.0, 500000.0, 1000000.0, 100000.0, 1000.0)
DECADES = tuple(10.0**n for n in range(1, 11))
"""Bases from which the search for another one starts."""
FACTORS = {"2 pi": 2 * math.pi, "pi": math.pi, "pi / 2": math.pi / 2, "1 / (2 pi)": 0.5 / math.pi, "pi / 180": math.pi / 180}
"""Factors of positions that are tried, by their words."""
WHOLE = 1e-6
SMALL = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of the tables, of the pairs, and of what is rotated."""
    if rotary := rotary_of(replay):
        yield from tables(rotary)
        if rotary.positions.ndim > 1:
            yield from recounted(rotary, by_masks(replay, rotary.positions.shape[-1]))
        if rotary.name != "sinusoidal":
            yield from pairs(replay.operations, rotary)
            yield from children(replay, rotary)
            yield from uses(replay.operations)


def with_tables(rotary: Rotary, change: Change, tables: Callable[..., Tables], **args: Any) -> Proposal:
    """Propose other tables, which jax's code may hold in float32."""
    proposal = propose(change, rotary.name, lambda *value: rotary.given(tables(*value)), **args)
    return replace(proposal, pushed=lambda *value: rotary.given(rotary.pushed(tables(*value))))


def recounted(rotary: Rotary, others: Others) -> Iterator[Proposal]:
    """Mutations of positions that are counted in another way, of the tables' shape or `B T`."""
    axes = rotary.positions.ndim
    for way, other in others:
        positions = other if other.ndim == axes else other.reshape(len(other), *[1] * (axes - 2), -1)
        yield with_tables(rotary, POSITIONS, partial(rotary.tables, positions), **way.args)


def tables(rotary: Rotary) -> Iterator[Proposal]:
    """Mutations of rates, positions, signs and precision of the tables."""
    width, rates, positions, base = rotary.width, rotary.rates, rotary.positions, rotary.base
    plain = torch.allclose(rates, plain_rates(width, base), rtol=1e-5)
    divisor = 0.0 if plain else rotary.divisor
    own = {"how": "plain" if plain else "divided" if divisor else "other", "own": base, "by": divisor, "width": width}
    if own["how"] == "other":
        own["scaling"] = scaling_of(rates, width)
    other = partial(with_tables, rotary)

    def of_base(base: float) -> Tables:
        return rotary.tables(rates=plain_rates(width, base))

    if divisor:
        yield other(UNDIVIDED, partial(of_base, base), **own)
    for each in BASES:
        if not plain or each != base:
            yield other(BASE, partial(of_base, each), base=each, **own)
    yield from rounded(rotary)
    for which, args, slower in () if plain else smoothings(rates, width):
        yield other(SMOOTHED[which], partial(rotary.tables, rates=slower), **args, **own)
    for how, (_, of) in RATES.items():
        yield other(OTHER_RATES, partial(rotary.tables, rates=of(rates)), how=how)
    yield other(NONE, lambda: rotary.tables(0 * positions, size=1.0))
    yield other(BACKWARDS, lambda: (rotary.cos, -rotary.sin))
    yield other(EXCHANGED, lambda: (rotary.sin, rotary.cos))
    if abs(rotary.size - 1) > WHOLE:
        yield other(AMPLITUDE, lambda: rotary.tables(size=1.0), own=rotary.size)
    yield from recounted(rotary, other_positions(positions.long()))
    for more in (1, -1) if rotary.name == "sinusoidal" else ():
        yield other(SHIFTED, partial(rotary.tables, positions + more), more=more)
    for name, factor in FACTORS.items():
        yield other(TIMES, partial(rotary.tables, positions * factor), factor=name)
    yield other(SOLVED_TIMES, lambda c: rotary.tables(positions * c), free=Free(1.0, sure=True))
    yield other(SOLVED_BASE, of_base, free=Free(base, sure=True, seeds=(base, *DECADES)), **own)


def rounded(rotary: Rotary) -> Iterator[Proposal]:
    """Mutations that round the tables, their rates or their angles to a smaller type."""
    for name, kind in SMALL.items():
        cos, sin, rates, angles = (
            x.to(kind).double() for x in (rotary.cos, rotary.sin, rotary.rates, rotary.positions[..., None] * rotary.rates)
        )
        others = {
            ("cosines", "sines"): (cos, sin),
            ("rates",): rotary.tables(rates=rates),
            ("angles",): rotary.with_angles(angles),
        }
        for parts, tables in others.items():
            yield propose(ROUNDED, rotary.name, partial(rotary.given, tables), parts=parts, type=name)


def pairs(ops: list[Op], rotary: Rotary) -> Iterator[Proposal]:
    """Mutations of which units are pairs: where `rotate_half` exchanges the units of a pair, in the tables, or in both."""
    exchanges = [op for op in ops if joins_pairs(op)]
    targets = tuple(op.target for op in exchanges)
    neighbours = rotary.layout == LAYOUTS[1] or any(op.name == "stack" for op in exchanges)
    how = LAYOUTS[neighbours]
    turned = partial(Rewrite, {op.place: other_pairs for op in exchanges})
    if exchanges:
        yield propose(TURNED, targets, turned, how=how)
    if products := table_products(ops) if exchanges else []:
        both = [(pair, (relaid(pair[0].table, neighbours), relaid(pair[1].table, neighbours))) for pair in products]
        yield propose(PAIRS, targets, lambda: together(at_uses(both), turned()), how=how)
    if rotary.layout in LAYOUTS:
        laid = rotary.tables(layout=LAYOUTS[rotary.layout == LAYOUTS[0]])
        yield with_tables(rotary, LAID, lambda: laid, how=how)
        if exchanges:
            yield propose(PAIRS, (rotary.name, *targets), lambda: together(rotary.given(laid), turned()), how=how)


def joins_pairs(op: Op) -> bool:
    """True if an operation may be the last of `rotate_half(x)`: it joins two arrays of one shape, one after the other or
    interleaved."""
    both = joins(op)
    alike = len(both) == 2 and both[0].is_floating_point() and both[0].ndim > 2 and both[0].shape == both[1].shape
    return alike and both[0].shape[-1] > 1 and not torch.equal(*both)  # a table joins one array twice


def other_pairs(function: object, args: tuple[tuple[torch.Tensor, torch.Tensor]], kwargs: object, n: int) -> torch.Tensor:
    """Compute rotate_half, (a, b) -> (-b, a), pairing units 2i and 2i + 1 where torch pairs i and i + d/2, or the reverse."""
    minus, plus = args[0]
    if "stack" in getattr(function, "__name__", ""):
        a, b = torch.stack([plus, -minus], -1).flatten(-2).chunk(2, -1)
        return torch.cat([-b, a], -1).reshape(*minus.shape, 2)
    x = torch.cat([plus, -minus], -1)
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


def children(replay: Replay, rotary: Rotary) -> Iterator[Proposal]:
    """Mutations of queries and keys that children give which jax calls too: with their units in the order of other pairs, or
    rotated by other positions."""
    width, length, how = rotary.width, rotary.positions.shape[-1], LAYOUTS[rotary.layout == LAYOUTS[1]]
    given = given_by(replay)
    heads = {site: x for site, x in given.items() if x.ndim == 3 and x.shape[1] == length and x.shape[-1] % width == 0}
    names = {site: name_of(replay, site) for site in heads}
    for those in [*combinations(heads, 2)][::-1] if rotary.layout in LAYOUTS else ():
        yield propose(PAIRS, tuple(names[site] for site in those), partial(reordered, replay, rotary, those), how=how)
    step = torch.ones(length)
    turns = (LATER, step), (EARLIER, -step), (AGAIN, rotary.positions), (UNROTATED, -rotary.positions)
    values = [core.heads[2] for core in cores(replay.listed)]
    for site, x in heads.items():
        turned_there = ((ROTATED, rotary.positions),) if any(holds_first_head(each, x) for each in values) else turns
        for change, steps in turned_there:
            yield propose(change, names[site], partial(turned, replay, rotary, site, steps))


def holds_first_head(heads: torch.Tensor, x: torch.Tensor) -> bool:
    """True if heads `B N T H` have the first head of `x`, `B T (N H)`, as it is."""
    first = x[..., : heads.shape[-1]]
    alike = first.shape == (len(heads), *heads.shape[2:])
    return alike and bool((heads == first[:, None]).all((0, 2, 3)).any())


def turned(replay: Replay, rotary: Rotary, site: Site, steps: torch.Tensor) -> Edit:
    """Edit in which the heads `B T (N H)` that a child gives are rotated by `steps` positions, `... T`."""
    x = replay.given[site]
    heads = x.unflatten(-1, (-1, rotary.width)).transpose(1, 2)
    other = Rotation(rotary.rates, rotary.layout)(heads, steps.reshape(-1, 1, x.shape[1]))
    return replay.given_outputs({site: other.transpose(1, 2).reshape(x.shape)})


def reordered(replay: Replay, rotary: Rotary, sites: Iterable[Site]) -> Edit:
    """Edit in which heads that children give have their units in the order that turns torch's rotary pairs into those of the
    other convention. Scores do not see the order, since queries and keys both have it."""
    units = torch.arange(rotary.width)
    apart = torch.cat([units[::2], units[1::2]])
    order = torch.argsort(apart) if rotary.layout == LAYOUTS[1] else apart
    heads = {site: replay.given[site].unflatten(-1, (-1, rotary.width)) for site in sites}
    return replay.given_outputs({site: x[..., order].flatten(-2) for site, x in heads.items()})


def uses(ops: list[Op]) -> Iterator[Proposal]:
    """Mutations of the tables of queries alone, or of keys alone, in every layer, in the order in which they are rotated."""
    found = table_products(ops)
    # two pairs of products for each array, where its halves are separate operands
    each = 2 if len(found) > 1 and any(same(x.other, y.other) for x in found[0] for y in found[1]) else 1
    if not found or len(found) % (2 * each):
        return
    for first in (0, each):
        those = [pair for n in range(first, len(found), 2 * each) for pair in found[n : n + each]]
        use = those[0][0]
        op = replace(use.op, only=use.run if len(use.op.runs) > 1 else None)
        for how, other in other_angles(those[0]).items():
            yield propose(USE, op.target, partial(at_uses, [(pair, other) for pair in those]), how=how)


def other_angles(pair: Pair) -> dict[str, Tables]:
    """Other tables for two products, by the key of `USE`'s words."""
    cos, sin = (each.table for each in pair)
    axis = positions_axis(cos)
    if axis is None:
        return {}
    angles, size = torch.atan2(sin, cos), (cos.square() + sin.square()).sqrt()
    step = angles.narrow(axis, 1, 1) - angles.narrow(axis, 0, 1)
    found = {"none": (torch.ones_like(cos), torch.zeros_like(sin)), "backwards": (cos, -sin), "exchanged": (sin, cos)}
    for how, n in {"later": 1, "earlier": -1}.items():
        moved = angles + n * step
        found[how] = moved.cos() * size, moved.sin() * size
        found[f"{how}_rolled"] = cos.roll(-n, axis), sin.roll(-n, axis)
    return found


def relaid(table: torch.Tensor, neighbours: bool) -> torch.Tensor:
    """Lay out a table for the other pairs: for halves if torch has `neighbours`, for neighbours if not."""
    half = table.shape[-1] // 2
    return torch.cat([table[..., ::2]] * 2, -1) if neighbours else table[..., :half].repeat_interleave(2, -1)


def at_uses(those: list[tuple[Pair, Tables]]) -> Rewrite:
    """Rewrite in which these products have other tables."""
    found: dict[Place, dict[int, dict[int, torch.Tensor]]] = {}
    for use, table in (each for pair, tables in those for each in zip(pair, tables, strict=True)):
        found.setdefault(use.op.place, {}).setdefault(use.run, {})[use.at] = table
    return Rewrite({place: partial(with_factors, runs) for place, runs in found.items()})


def with_factors(runs: dict[int, dict[int, torch.Tensor]], function: Any, args: Any, kwargs: Any, n: int) -> Any:
    """Compute a product with other factors in some runs."""
    return function(*(runs.get(n, {}).get(i, each) for i, each in enumerate(args)), **kwargs)
