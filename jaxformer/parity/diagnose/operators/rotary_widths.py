"""Mutations of how many units of a head are rotated, made where attention reads queries and keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from jaxformer.parity.diagnose.attention_cores import Core, Tensors, cores
from jaxformer.parity.diagnose.mutation import Change, Edit, Proposal, propose, together
from jaxformer.parity.diagnose.operators.rotary_tables import LAYOUTS, plain_rates, rotary_of
from jaxformer.parity.diagnose.replay import Replay

WIDTH = Change("rotary_widths.rotated", "rotates {width}", "rotates {own} of the {units} units of a head")
PARTS = (4, 2, 0.5, 0.25)
"""Numbers of rotated units that are tried, as parts of torch's; all units of a head are tried first."""


@dataclass(frozen=True)
class Rotation:
    """Rotation of the first units of a head by positions `B T`, or `1 T`."""

    rates: torch.Tensor
    """Radians a position of each pair."""
    layout: str
    """Pairs of units: 'halves' (i and i + width / 2) or 'neighbours' (2i and 2i + 1)."""

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate heads `B N T H`."""
        width, angles = 2 * len(self.rates), positions[:, None, :, None] * self.rates
        turned, rest = x[..., :width], x[..., width:]
        neighbours = self.layout == "neighbours"
        a, b = (turned[..., ::2], turned[..., 1::2]) if neighbours else turned.chunk(2, -1)
        both = a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()
        return torch.cat([torch.stack(both, -1).flatten(-2) if neighbours else torch.cat(both, -1), rest], -1)


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of the rotated width in every attention of the call, with the base of torch's rates or their ratio."""
    rotary = rotary_of(replay)
    if rotary is None or rotary.name == "sinusoidal":
        return
    positions = rotary.positions.reshape(-1, rotary.positions.shape[-1])
    those = [core for core in cores(replay.listed) if all(x.shape[-2] == positions.shape[-1] for x in core.heads)]
    units, own = those[0].heads[0].shape[-1] if those else 0, rotary.width
    widths = [each for each in dict.fromkeys((units, *(int(part * own) for part in PARTS))) if 2 <= each <= units]
    for width in (each for each in widths if each != own and each % 2 == 0):
        ratio = rotary.rates[:1] * (rotary.rates[1:2] / rotary.rates[:1]) ** torch.arange(width // 2)
        for rates in (plain_rates(width, rotary.base), ratio):
            for layout in LAYOUTS if rotary.layout == "once" else (rotary.layout,):
                before, after = Rotation(rotary.rates, layout), Rotation(rates, layout)
                edits = partial(rotated, those, positions, before, after)
                yield propose(WIDTH, "rotary", edits, width=width, own=own, units=units, layout=layout)


def rotated(those: list[Core], positions: torch.Tensor, before: Rotation, after: Rotation) -> Edit:
    """Edit in which queries and keys are rotated in another way."""

    def moved(heads: Tensors) -> Tensors:
        q, k, v = heads
        q, k = (after(before(x, -positions), positions) for x in (q, k))
        return q, k, v

    return together(*(core.with_heads(moved) for core in those))
