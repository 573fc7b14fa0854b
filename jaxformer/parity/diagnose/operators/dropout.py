"""Mutations of dropout: left out, not scaled, inverted, at another rate, or on another operation's output."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter

import torch

from jaxformer.parity.diagnose.computes import behind
from jaxformer.parity.diagnose.mutation import Change, Edit, Proposal, Target, grouped, propose, together, words_of
from jaxformer.parity.diagnose.operators.arguments import numbers_in, with_literal
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, Rewrite
from jaxformer.parity.trace.draws import DROPOUT, UNIFORM, Draw, mutated_draws, numbers_of
from jaxformer.parity.trace.draws import Change as DrawChange

PART_KEPT = Change("dropout.part_kept", "keeps {part:g}", "keeps the part {was:g} in {0}")
RATE = Change("dropout.rate", "has {rate:g} for that rate", "has {0}")
MOVED = Change("dropout.moved", "drops what {1} gives instead", "has {0}")
DRAWS: dict[str, tuple[str, DrawChange]] = {
    "left_out": ("does not drop there", lambda kept, keep: torch.full_like(kept, keep)),
    "unscaled": ("does not divide by the part kept (1 - rate)", lambda kept, keep: kept * keep),
    "inverted": ("keeps what torch drops", lambda kept, keep: 1 - kept),
}
"""Mutations of a draw, `change(kept, keep)`: `kept` is 1 where a unit is kept. torch divides by `keep` afterwards."""
DRAWN = Change("dropout.drawn", words_of(DRAWS), "has {targets:and}")
RATES = tuple(n / 100 for n in range(1, 100))
"""Rates of dropout, or parts kept, that are tried."""


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of what a call drops in training mode: by torch's dropout, or by uniform numbers that its code draws."""
    noted: list[Draw] = []
    with mutated_draws({}, noted):
        replay.array()
    if any(draw.kind == UNIFORM for draw in noted):
        yield from parts_kept(replay.operations)
    dropped = [draw for draw in dict.fromkeys(noted) if draw.kind == DROPOUT]
    for draws in (*([draw] for draw in dropped), dropped) if dropped else ():
        for how, (_, change) in DRAWS.items():
            yield propose(DRAWN, tuple(map(target, draws)), partial(drawn, draws, change), how=how)
    for draw in dropped:
        for rate in RATES:
            yield propose(RATE, target(draw), partial(drawn, [draw], partial(at_rate, draw, rate)), rate=rate)
    for draw in dropped:
        for op in replay.listed:
            if isinstance(op.output, torch.Tensor) and tuple(op.output.shape) == draw.shape:
                yield propose(MOVED, (target(draw), op.target), partial(moved, draw, op))


def target(draw: Draw) -> Target:
    """Target of a draw, in words that hold for torch and jax."""
    return Target(draw.says)


def drawn(draws: list[Draw], change: DrawChange) -> Edit:
    """Edit in which `change` is applied to these draws."""
    return mutated_draws({(draw.path, draw.number): change for draw in draws})


def at_rate(draw: Draw, rate: float, kept: torch.Tensor, keep: float) -> torch.Tensor:
    """Compute a draw at another rate from the same uniform numbers, scaled so that torch's division by `keep` fits that
    rate."""
    uniform = torch.from_numpy(numbers_of(replace(draw, kind=UNIFORM)))
    return (uniform < 1 - rate).to(kept.dtype) * keep / (1 - rate)


def moved(draw: Draw, op: Op) -> Edit:
    """Edit in which the same units are dropped from the output of `op` instead."""
    factor = torch.from_numpy(numbers_of(draw)) / draw.keep
    rewrite = Rewrite({op.place: behind(lambda y: y * factor)})
    return together(drawn([draw], DRAWS["left_out"][1]), rewrite)


def parts_kept(operations: list[Op]) -> Iterator[Proposal]:
    """Mutations of the part kept, in code that draws uniform numbers itself: a number between 0 and 1, wherever the code has
    it."""
    numbers = (each for each in numbers_in(operations) if 0 < each[2] < 1)
    for number, those in grouped(numbers, itemgetter(2)).items():
        for part in RATES:
            yield propose(PART_KEPT, those[0][0].target, partial(with_literal, those, part), part=part, was=number)
