"""One vector made of many in another way: by another position, a mean of others, the last that counts."""

from collections.abc import Iterator, Sequence

import torch

from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.diagnose.mutation import Change, Proposal, Target
from jaxformer.parity.diagnose.nudges import of_reals
from jaxformer.parity.diagnose.operators.reroute import JOINS, Value, array_of, operands, parts, reads, rerouted, worded
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, same

MOST_SEQUENCES, MOST_MASKS = 4, 3
MOST_POOLED = 4
"""Arrays of one vector for each row, the last of them."""
PLAIN = {
    "first": "the first position of {1}",
    "last": "the last position of {1}",
    "mean": "the mean of all positions of {1}",
    "largest": "the largest of all positions of {1}",
    "mean_behind_first": "the mean without the first position of {1}",
}
MASKED = {
    "masked_mean": "the mean of {1} by {2}",
    "masked_sum": "the sum of {1} by {2}, divided by all positions",
    "masked_last": "the last position of {1} by {2}",
    "counted": "position {2}, counted, of {1}",
    "masked_largest": "the largest of {1} by {2}",
    "masked_mean_behind_first": "the mean of {1} by {2}, without the first",
}
CONTRARY = {f"contrary_{how}": words.replace("{2}", "not {2}") for how, words in MASKED.items()}
POOLINGS = PLAIN | MASKED | CONTRARY
"""Ways to pool; `{1}` is the sequence, `{2}` the mask."""
IN_PLACE = Change("pooling.array", worded("uses VALUE in its place", POOLINGS), "has {0} as it is", reroutes=True)
OPERAND = Change("pooling.operand", worded("reads VALUE for its {ordinal} operand", POOLINGS), reroutes=True)
PART = Change("pooling.part", worded("reads VALUE for part {part}", POOLINGS), reroutes=True)

Known = tuple[str | Target, torch.Tensor]
"""What made a tensor, and the tensor."""


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of the array itself, and of what operations read."""
    known = [*known_in(replay)]
    masks = [(its, x) for its, x in known if x.dtype == torch.bool and x.ndim == 2 and x.any() and not x.all()]
    ops = [op for op in replay.operations if len(op.runs) == 1 and any(of_reals(x) and x.ndim == 2 for x in read_by(op))]
    fitting = {tuple(x.shape) for op in ops[-MOST_POOLED:] for x in read_by(op)} | {replay.wanted.shape}
    pooled = [value for each in sequences(known, fitting) for value in pooled_of(*each, masks[:MOST_MASKS])]
    for value in pooled:
        if value.x.shape == replay.wanted.shape:
            yield reads(IN_PLACE, array_of(replay), value)
    for op in ops[-MOST_POOLED:]:
        yield from rerouted(PART, parts(op), pooled) if op.name in JOINS else rerouted(OPERAND, operands(op, 2), pooled)


def known_in(replay: Replay) -> Iterator[Known]:
    """What comes in, what children gave, and what was made."""
    for number, x in enumerate(arrays_in(replay.arguments), 1):
        yield f"input {number}", x
    for site, given in replay.given.items():
        for x in arrays_in(given)[:1]:
            yield str(site).removeprefix(f"{replay.owner.path}."), x
    for op in replay.operations:
        for x in arrays_in(op.output)[:1] if len(op.runs) == 1 else ():
            yield op.target, x
        for x in op.args[1:2] if op.name == "masked_fill" else ():
            yield "what is not masked", ~x


def read_by(op: Op) -> list[torch.Tensor]:
    """The first arrays, or those that are put together."""
    return [x for x in (op.args[0] if op.name in JOINS else op.args[:2]) if isinstance(x, torch.Tensor)]


def sequences(known: Sequence[Known], fitting: set[tuple[int, ...]]) -> list[Known]:
    """Arrays that are no copies of each other, and whose positions have one of these shapes: the first, and the last ones."""
    found: list[Known] = []
    for target, x in known:
        fits = x.is_floating_point() and x.ndim == 3 and x.shape[1] > 1 and (len(x), x.shape[2]) in fitting
        if fits and not any(same(x, other) for _, other in found):
            found.append((target, x))
    return [*found[:-MOST_SEQUENCES][:1], *found[-MOST_SEQUENCES:]]


def pooled_of(target: str | Target, x: torch.Tensor, masks: Sequence[Known]) -> Iterator[Value]:
    """One vector of each row, made in every way."""
    plain = x[:, 0], x[:, -1], x.mean(1), x.amax(1), x[:, 1:].mean(1)
    yield from (Value(how, (target,), one, {}) for how, one in zip(PLAIN, plain, strict=True))
    for its, mask in masks:
        for ways, counts in ((MASKED, mask), (CONTRARY, ~mask)) if mask.shape == x.shape[:2] else ():
            made = zip(ways, masked(x, counts), strict=True)
            yield from (Value(how, (target, its), one, {}) for how, one in made)


def masked(x: torch.Tensor, counts: torch.Tensor) -> Iterator[torch.Tensor]:
    """One vector of each row, made of the positions that count: in the order of `MASKED`."""
    weights, rows = counts[..., None].to(x.dtype), torch.arange(len(x))
    yield (x * weights).sum(1) / weights.sum(1).clamp(min=1)
    yield (x * weights).mean(1)
    yield x[rows, (counts * torch.arange(x.shape[1])).argmax(1)]
    yield x[rows, (counts.sum(1) - 1).clamp(min=0)]
    yield x.masked_fill(~counts[..., None], -torch.inf).amax(1)
    weights[:, 0] = 0
    yield (x * weights).sum(1) / weights.sum(1).clamp(min=1)
