"""Rotation of heads by rotary positions; mutations of the heads that attention reads: how many of their units are rotated, and
a rotation where torch has none, as of values."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product

import torch

from jaxformer.parity.diagnose.attention_cores import Core, cores
from jaxformer.parity.diagnose.computes import in_run
from jaxformer.parity.diagnose.mutation import Change, Proposal, propose
from jaxformer.parity.diagnose.operators.positions import paired
from jaxformer.parity.diagnose.operators.rotary_tables import LAYOUTS, Rotary, rotary_of
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.rotary_rates import plain_rates
from jaxformer.parity.diagnose.trace import Rewrite

WIDTH = Change("rotary_heads.width", "rotates {width}", "rotates {own} of the {units} units of a head")
ADDED = Change("rotary_heads.added", "rotates queries and keys by rotary positions of base {base:g}", "does not rotate at {0}")
PAIRS = Change("rotary_heads.pairs", paired("has them {1}"), paired("has rotary pairs {0}"))
VALUES = Change("rotary_heads.values", "rotates values too", "rotates queries and keys alone at {0}")
MOST_RUNS = 4
"""Largest number of runs of which each is also mutated alone."""
BASES = (10000.0, 500000.0, 1000000.0)
PARTS = (4, 2, 0.5, 0.25)
"""Numbers of rotated units that are tried, as parts of torch's; all units of a head are tried first."""


@dataclass(frozen=True)
class Rotation:
    """Rotation of the first units of each head, in pairs."""

    rates: torch.Tensor
    """Radians a position of each pair."""
    layout: str = "halves"
    """Pairs of units: 'neighbours' (2i and 2i + 1), or others for halves (i and i + width / 2)."""

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate heads `... T H` by positions `... T`."""
        width, angles = 2 * len(self.rates), positions[..., None] * self.rates
        turned, rest = x[..., :width], x[..., width:]
        neighbours = self.layout == "neighbours"
        a, b = (turned[..., ::2], turned[..., 1::2]) if neighbours else turned.chunk(2, -1)
        both = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
        return torch.cat([torch.stack(both, -1).flatten(-2) if neighbours else torch.cat(both, -1), rest], -1)


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of the rotation in every attention of the call."""
    rotary, found = rotary_of(replay), [*cores(replay.listed)]
    if rotary is None or rotary.name == "sinusoidal":
        alike = [core for core in found if len({x.shape[-2] for x in core.heads}) == 1]
        length = alike[0].heads[0].shape[-2] if alike else 0
        rates = {base: plain_rates(core.heads[0].shape[-1], base) for core in alike[:1] for base in BASES}
        yield from added(alike, torch.arange(length), rates, LAYOUTS)
    else:
        positions = rotary.positions.reshape(-1, 1, rotary.positions.shape[-1])
        alike = [core for core in found if {x.shape[-2] for x in core.heads} == {positions.shape[-1]}]
        layouts = LAYOUTS if rotary.layout == "once" else (rotary.layout,)
        yield from widths(rotary, alike, positions, layouts)
        yield from added(alike, positions, {rotary.base: rotary.rates}, layouts)
        for own, other in permutations(LAYOUTS) if alike else ():
            if own in layouts:
                before, after = Rotation(rotary.rates, own), Rotation(rotary.rates, other)
                yield propose(PAIRS, rotary.name, partial(moved, alike, turned_anew(before, after, positions)), how=own)
        for layout in layouts if alike and rotary.width <= alike[0].heads[2].shape[-1] else ():
            rotation = partial(Rotation(rotary.rates, layout), positions=positions)
            yield propose(VALUES, alike[0].softmax.target, partial(moved, alike, rotation, those=(2,)), layout=layout)


def added(
    those: list[Core], positions: torch.Tensor, rates: dict[float, torch.Tensor], layouts: Sequence[str]
) -> Iterator[Proposal]:
    """Mutations that rotate queries and keys of self-attention, `B N T H`, where torch does not."""
    for (base, each), layout in product(rates.items(), layouts):
        if those and 2 * len(each) <= those[0].heads[0].shape[-1]:
            rotation, runs = partial(Rotation(each, layout), positions=positions), len(those[0].softmax.runs)
            for only in (None, *range(runs if 1 < runs <= MOST_RUNS else 0)):
                target = replace(those[0].softmax, only=only).target
                yield propose(ADDED, target, partial(moved, those, rotation, only), base=base, layout=layout)


def widths(rotary: Rotary, those: list[Core], positions: torch.Tensor, layouts: Sequence[str]) -> Iterator[Proposal]:
    """Mutations of the number of rotated units, with the base of torch's rates or their ratio."""
    units, own = those[0].heads[0].shape[-1] if those else 0, rotary.width
    tried = [each for each in dict.fromkeys((units, *(int(part * own) for part in PARTS))) if 2 <= each <= units]
    for width in (each for each in tried if each != own and each % 2 == 0):
        ratio = rotary.rates[:1] * (rotary.rates[1:2] / rotary.rates[:1]) ** torch.arange(width // 2)
        for rates, layout in product((plain_rates(width, rotary.base), ratio), layouts):
            before, after = Rotation(rotary.rates, layout), Rotation(rates, layout)
            edits = partial(moved, those, turned_anew(before, after, positions))
            yield propose(WIDTH, rotary.name, edits, width=width, own=own, units=units, layout=layout)


def turned_anew(before: Rotation, after: Rotation, positions: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the function of heads that takes one rotation back and applies another."""
    return lambda x: after(before(x, -positions), positions)


def moved(
    several: list[Core], change: Callable[[torch.Tensor], torch.Tensor], only: int | None = None, those: Sequence[int] = (0, 1)
) -> Rewrite:
    """Rewrite in which attention reads a function of some of its queries, keys and values (`those`), in every run or in one."""
    edits = (
        core.with_heads(lambda heads: tuple(change(x) if i in those else x for i, x in enumerate(heads))) for core in several
    )
    return Rewrite({place: in_run(only, compute) for edit in edits for place, compute in edit.altered.items()})
