"""What may be otherwise in what torch drops: left out, not scaled, or dropped from another operation's result."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch

from jaxformer.parity.capture.draws import DROPOUT, UNIFORM, Draw, numbers_of
from jaxformer.parity.capture.torch_draws import Change, altered_draws
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.of_operands import numbers_in, with_literal
from jaxformer.parity.explain.alterations.operations import Altered, Listing, Operation
from jaxformer.parity.explain.alterations.rerun import Rerun

CHANGES: dict[str, Change] = {
    "leaves it out there": lambda kept, keep: torch.full_like(kept, keep),
    "does not divide by the part that is kept": lambda kept, keep: kept * keep,
    "keeps what torch drops": lambda kept, keep: 1 - kept,
}
"""What jax may do instead. torch divides by `keep` itself."""
RATES = tuple(n / 100 for n in range(1, 100))
"""What may be dropped, or kept."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """In training mode, of the units that the call drops."""
    noted: list[Draw] = []
    with altered_draws({}, noted):
        rerun.array()
    if any(draw.kind == UNIFORM for draw in noted):
        yield from parts_kept(rerun.operations)
    dropped = [draw for draw in dict.fromkeys(noted) if draw.kind == DROPOUT]
    if not dropped:
        return
    for draws in (*([draw] for draw in dropped), dropped):
        for says, change in CHANGES.items():
            yield changed(draws, says, change)
    for draw in dropped:
        for rate in RATES:
            yield changed([draw], f"has {rate:g} for that", partial(at_rate, draw, rate))
    listing = Listing()
    rerun.array(listing)
    for draw in dropped:
        for operation in listing.operations.values():
            if isinstance(operation.output, torch.Tensor) and tuple(operation.output.shape) == draw.shape:
                says = f"has {draw.says}", f"drops what {operation.source} gives"
                yield Alteration(*says, lambda draw=draw, operation=operation: moved(draw, operation))


def at_rate(draw: Draw, rate: float, kept: torch.Tensor, keep: float) -> torch.Tensor:
    """What is kept of the same uniform numbers, as much larger as that is less."""
    uniform = torch.from_numpy(numbers_of(replace(draw, kind=UNIFORM)))
    return (uniform < 1 - rate).to(kept.dtype) * keep / (1 - rate)


def parts_kept(operations: list[Operation]) -> Iterator[Alteration]:
    """Code that draws uniform numbers has the part that is kept as a number, more than once."""
    places: dict[float, list[tuple[Operation, int]]] = {}
    for operation, at, value in numbers_in(operations):
        if 0 < value < 1:
            places.setdefault(value, []).append((operation, at))
    for value, those in places.items():
        for part in RATES:
            said = f"keeps {value:g} in {those[0][0].source}", f"keeps {part:g}"
            yield Alteration(*said, lambda those=those, part=part: with_literal(those, part))


def changed(draws: list[Draw], says: str, change: Change) -> Alteration:
    """Other numbers in these draws."""
    changes = {(draw.path, draw.number): change for draw in draws}
    return Alteration(f"has {' and '.join(draw.says for draw in draws)}", says, lambda: altered_draws(changes))


@contextmanager
def moved(draw: Draw, operation: Operation) -> Iterator[None]:
    """Inside, the same units are dropped from what that operation gives."""
    factor = torch.from_numpy(numbers_of(draw)) / draw.keep
    still = {(draw.path, draw.number): CHANGES["leaves it out there"]}
    with ExitStack() as stack:
        stack.enter_context(altered_draws(still))
        stack.enter_context(Altered({operation.place: lambda f, a, k, n: f(*a, **k) * factor}))
        yield
