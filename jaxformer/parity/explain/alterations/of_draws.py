"""What may be otherwise in what torch drops: left out, not scaled, or dropped from another operation's result."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from jaxformer.parity.capture.draws import DROPOUT, Draw, numbers_of
from jaxformer.parity.capture.torch_draws import Change, altered_draws
from jaxformer.parity.explain.alterations.altered import Alteration
from jaxformer.parity.explain.alterations.operations import Altered, Listing, Operation
from jaxformer.parity.explain.alterations.rerun import Rerun

CHANGES: dict[str, Change] = {
    "leaves it out there": lambda kept, keep: torch.full_like(kept, keep),
    "does not divide by the part that is kept": lambda kept, keep: kept * keep,
    "keeps what torch drops": lambda kept, keep: 1 - kept,
}
"""What jax may do instead. torch divides by `keep` itself."""


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """In training mode, of the units that the call drops."""
    noted: list[Draw] = []
    with altered_draws({}, noted):
        rerun.array()
    dropped = [draw for draw in dict.fromkeys(noted) if draw.kind == DROPOUT]
    if not dropped:
        return
    for draws in (*([draw] for draw in dropped), dropped):
        for says, change in CHANGES.items():
            yield changed(draws, says, change)
    listing = Listing()
    rerun.array(listing)
    for draw in dropped:
        for operation in listing.operations.values():
            if isinstance(operation.output, torch.Tensor) and tuple(operation.output.shape) == draw.shape:
                says = f"has {draw.says}", f"drops what {operation.source} gives"
                yield Alteration(*says, lambda draw=draw, operation=operation: moved(draw, operation))


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
