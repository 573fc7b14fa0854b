"""Mutations of arrays whose entries are solved for: small tables that torch holds or makes of constants, as slopes and window
functions; and the length of each row in a padding mask."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from jaxformer.parity.diagnose.mask_senses import as_mask, kept_keys
from jaxformer.parity.diagnose.modules import held
from jaxformer.parity.diagnose.mutation import ByRow, Change, Edit, Proposal, Target, propose
from jaxformer.parity.diagnose.operators.masks import GIVES, constant, is_new_mask
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.trace import Op, same
from jaxformer.parity.numerics.metrics import EXPLAINED, distance
from jaxformer.parity.trace.call_records import arrays_in

HELD = Change("tables.held", "has {numbers}", "has {own} in {0}")
MADE = Change("tables.made", "has {numbers} there")
WINDOWS = {
    f"a {name} window, {'periodic' if periodic else 'symmetric'}": partial(make, periodic=periodic)
    for name, make in (("Hann", torch.hann_window), ("Hamming", torch.hamming_window), ("Blackman", torch.blackman_window))
    for periodic in (False, True)
}
"""Window functions by their words."""
MOST_NUMBERS, MOST_TABLES = 64, 4
"""Largest size of a table, and largest number of tables, that are solved for."""
MOST_OPERATIONS = 15_000
"""Budget of one search, in replayed operations."""
FEWEST_EACH = 4
"""Fewest entries of the array for each number of a table; with fewer, a fit proves nothing."""
STEPS = 5
"""Largest number of Gauss-Newton steps."""
BETTER = 0.5
"""Largest factor that a step may leave of the residual."""
SHOWN = 3


class Table(NamedTuple):
    """Vector of numbers, and how it is replaced."""

    change: Change
    target: str | Target
    numbers: torch.Tensor
    given: Callable[[torch.Tensor], Edit]
    """given(numbers) -> the edit in which torch has these numbers."""

    def becomes(self, other: torch.Tensor) -> Proposal:
        """Propose other numbers for the table."""
        edit, own = partial(self.given, other), shown(self.numbers)
        return propose(self.change, self.target, edit, numbers=shown(other), own=own)


def small_tables(replay: Replay) -> Iterator[Proposal]:
    """Mutations of each table, buffers first: other window functions of any length, then numbers that are solved for."""
    jax, left, found = replay.compared.get(replay.place), MOST_OPERATIONS, [*tables(replay)]
    for table in found:
        own = shown(table.numbers)
        for window in [each for each in WINDOWS if own in WINDOWS and each != own]:
            other = WINDOWS[window](table.numbers.numel(), dtype=table.numbers.dtype)
            yield table.becomes(other.view_as(table.numbers))
    for table in [each for each in found if each.numbers.numel() <= MOST_NUMBERS][:MOST_TABLES]:
        count = table.numbers.numel()
        left -= replay.cost * (count + 2)
        if jax is None or left < 0 or jax.shape != replay.wanted.shape or count * FEWEST_EACH > jax.size:
            continue
        if (other := solved(replay, table, jax)) is not None and not torch.equal(other, table.numbers):
            yield table.becomes(other)


def tables(replay: Replay) -> Iterator[Table]:
    """Vectors that a module holds as buffers, or that code makes of constants alone."""
    for name, buffer in replay.module.named_buffers():
        if is_vector(buffer):
            yield Table(HELD, name, buffer.clone(), partial(held, buffer))
    constants: list[torch.Tensor] = []
    for op in replay.operations:
        read = [each for each in (*op.args, *op.kwargs.values()) if isinstance(each, torch.Tensor)]
        is_constant = all(any(same(x, each) for each in constants) for x in read)
        if isinstance(op.output, torch.Tensor) and len(op.runs) == 1 and is_constant:
            constants.append(op.output)
            if is_vector(op.output):
                yield Table(MADE, op.target, op.output, partial(made, op))


def is_vector(x: torch.Tensor) -> bool:
    """True for a vector of several real numbers."""
    return x.is_floating_point() and x.numel() > 1 and x.squeeze().ndim == 1


def made(op: Op, numbers: torch.Tensor) -> Edit:
    """Edit in which an operation gives these numbers."""
    return op.rewrite(lambda function, args, kwargs, n: numbers.clone())


def solved(replay: Replay, table: Table, jax: np.ndarray) -> torch.Tensor | None:
    """Solve for numbers that give jax's array by the Gauss-Newton method; None if none do."""
    x, array = table.numbers.clone(), replay.array(table.given(table.numbers))
    if array is None or array.shape != jax.shape:
        return None
    residual = distance(array, jax)
    for _ in range(STEPS):
        if residual <= EXPLAINED / 10:
            break
        if (slopes := slopes_of(replay, table, x, array)) is None:
            return None
        moved = x + torch.tensor(np.linalg.lstsq(slopes.T, (jax - array).ravel(), rcond=1e-10)[0]).reshape(x.shape)
        array = replay.array(table.given(moved))
        if array is None or not (better := distance(array, jax)) <= BETTER * residual:
            break
        x, residual = moved, better
    return x if residual <= EXPLAINED else None


def slopes_of(replay: Replay, table: Table, x: torch.Tensor, array: np.ndarray) -> np.ndarray | None:
    """Compute the slopes of the array by each number, from finite differences; None if a replay gives no finite array."""
    found, step = [], 1e-6 * max(1e-2, float(x.abs().max()))
    for i in range(x.numel()):
        beside = x.clone()
        beside.view(-1)[i] += step
        if (moved := replay.array(table.given(beside))) is None or not np.isfinite(moved).all():
            return None
        found.append((moved - array).ravel() / step)
    return np.stack(found)


def shown(numbers: torch.Tensor) -> str:
    """Words for numbers: a window function such as 'a Hann window, symmetric', or the first numbers."""
    flat = numbers.flatten().double()
    for name, make in WINDOWS.items():
        if len(flat) > SHOWN and torch.allclose(make(len(flat)).double(), flat, rtol=0, atol=1e-6):
            return name
    more = f", ... ({len(flat)} numbers)" if len(flat) > SHOWN else ""
    return ", ".join(f"{number:.4g}" for number in flat[:SHOWN].tolist()) + more


FURTHEST, FEWEST, ROWS_SHOWN = 12, 5, 3
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
    return f"has its mask true at {', '.join(other[:ROWS_SHOWN])}" + f", and others in {len(other) - ROWS_SHOWN} more" * (
        len(other) > ROWS_SHOWN
    )


GIVEN = Change("mask_rows.given", said, GIVES)
ROWS_MADE = Change("mask_rows.made", said)


def mask_rows(replay: Replay) -> Iterator[Proposal]:
    """Mutations of each distinct mask that hides keys by the array's rows, where it appears first."""
    jax, seen = replay.compared.get(replay.place), list[torch.Tensor]()
    rows = jax.shape[0] if jax is not None and jax.ndim else 0
    for i, array in enumerate(arrays_in(replay.arguments)):
        if is_new_mask(array, seen) and is_of_rows(array, rows):
            given: Masks = lambda mask, i=i: replay.given_inputs({i: mask})  # noqa: E731
            yield other_lengths(GIVEN, f"input {i}", array, given)
    for op in replay.operations:
        if is_new_mask(op.output, seen) and is_of_rows(op.output, rows):
            yield other_lengths(ROWS_MADE, op.target, op.output, partial(rows_made, op))


def rows_made(op: Op, mask: torch.Tensor) -> Edit:
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
