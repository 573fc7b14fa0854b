"""Mutations of the length of each row in a padding mask, solved for row by row."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from jaxformer.parity.diagnose.mutation import ByRow, Change, Edit, Proposal, propose
from jaxformer.parity.diagnose.operators.masks import GIVES, as_mask, constant, is_new_mask, kept_keys
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op
from jaxformer.parity.trace.call_records import arrays_in

FURTHEST, FEWEST, SHOWN = 12, 5, 3
"""Largest number of keys by which a row's length changes; fewest keys of a mask; most rows that the words name."""
Masks = Callable[[torch.Tensor], Edit]
"""masks(mask) -> the edit that gives torch this mask."""


def said(args: dict[str, Any]) -> str:
    """Words for other lengths of rows.

    They give the difference in keys if it is the same in all rows, and the rows' own lengths if not. 'true at' holds for masks
    of visible keys and of hidden ones.
    """
    several, most = [*zip(args["was"], args["keys"], strict=True)], args["most"]
    for by in {now - was for was, now in several if now != was}:
        if all(now == max(min(was + by, most), 0) for was, now in several):
            return f"has its mask true at {abs(by)} key{'s' * (abs(by) > 1)} {'more' if by > 0 else 'fewer'} in each row"
    other = [f"{now} keys in row {n} (torch {was})" for n, (was, now) in enumerate(several) if was != now]
    return f"has its mask true at {', '.join(other[:SHOWN])}" + f", and others in {len(other) - SHOWN} more" * (
        len(other) > SHOWN
    )


GIVEN = Change("mask_rows.given", said, GIVES)
MADE = Change("mask_rows.made", said)


def proposals(replay: Replay) -> Iterator[Proposal]:
    """Mutations of each distinct mask that hides keys by the array's rows, where it appears first."""
    jax, seen = replay.compared.get(replay.place), list[torch.Tensor]()
    rows = jax.shape[0] if jax is not None and jax.ndim else 0
    for i, array in enumerate(arrays_in(replay.arguments)):
        if is_new_mask(array, seen) and is_of_rows(array, rows):
            given: Masks = lambda mask, i=i: replay.given_inputs({i: mask})  # noqa: E731
            yield other_lengths(GIVEN, f"input {i}", array, given)
    for op in replay.operations:
        if is_new_mask(op.output, seen) and is_of_rows(op.output, rows):
            yield other_lengths(MADE, op.target, op.output, partial(made, op))


def made(op: Op, mask: torch.Tensor) -> Edit:
    """Edit in which an operation gives this mask."""
    return op.rewrite(partial(constant, mask))


def is_of_rows(mask: torch.Tensor, rows: int) -> bool:
    """True if a mask stands for lengths of rows.

    Every query has the same keys, and the visible keys are at the beginning of each row, or at the end of each. Masks of few
    keys are excluded, since any booleans look like this there; so are squares, which have a row for each query.
    """
    keep = kept_keys(mask)
    alike = keep.reshape(len(keep), -1, keep.shape[-1])
    if len(keep) != rows or rows < 2 or keep.shape[-1] < FEWEST or keep.all() or not (alike == alike[:, :1]).all():
        return False
    if keep.ndim == 2 and rows == keep.shape[-1]:
        return False
    steps = alike[:, 0].int().diff()
    return bool((steps <= 0).all() or (steps >= 0).all())


def other_lengths(change: Change, target: Any, mask: torch.Tensor, edit: Masks) -> Proposal:
    """Propose other lengths for the rows of a mask, to be chosen row by row."""
    keep = kept_keys(mask)
    flat = keep.reshape(len(keep), -1, keep.shape[-1])[:, 0]
    furthest = min(FURTHEST, flat.shape[-1])
    steps = [0, *(sign * n for n in range(1, furthest + 1) for sign in (1, -1))]
    at_end = bool((flat.int().diff() > 0).any())
    others = [longer(flat.flip(-1), by).flip(-1) if at_end else longer(flat, by) for by in steps]

    def instead(other: torch.Tensor) -> Edit:
        shaped = other.reshape(len(keep), *[1] * (keep.ndim - 2), -1).expand_as(keep)
        return edit(as_mask(mask, shaped))

    def chosen(ways: tuple[int, ...]) -> Proposal:
        other = torch.stack([others[way][row] for row, way in enumerate(ways)])
        return of(other, partial(instead, other))

    def of(other: torch.Tensor, edits: Callable[[], Edit]) -> Proposal:
        was, keys = (tuple(each.sum(-1).tolist()) for each in (flat, other))
        return propose(change, target, edits, was=was, keys=keys, most=flat.shape[-1])

    first = of(flat, partial(instead, flat))
    return Proposal(first.mutation, first.edits, by_row=ByRow(tuple(partial(instead, each) for each in others), chosen))


def longer(keep: torch.Tensor, by: int) -> torch.Tensor:
    """Rows of visible keys at the beginning, `by` keys longer, or shorter if negative."""
    return torch.arange(keep.shape[-1]) < keep.sum(-1, keepdim=True) + by
