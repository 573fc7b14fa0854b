"""Mutations of arrays whose entries are solved for: small tables that torch holds or makes of constants, as slopes and window
functions; and rows that are added at each position."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch

from jaxformer.parity.diagnose.computes import behind, gives
from jaxformer.parity.diagnose.functions import is_real
from jaxformer.parity.diagnose.modules import given_by, held, name_of
from jaxformer.parity.diagnose.mutation import Change, Edit, Proposal, Target, propose
from jaxformer.parity.diagnose.replay import Replay
from jaxformer.parity.diagnose.solve import gauss_newton, off
from jaxformer.parity.diagnose.trace import same
from jaxformer.parity.numerics.metrics import EXPLAINED

HELD = Change("tables.held", "has {numbers}", "has {own} in {0}")
MADE = Change("tables.made", "has {numbers} there")
ROWS = Change(
    "tables.rows", "has others, which differ by {by:.2g} of their size", "has the rows of {0} at the positions of a text"
)
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
MOST_ALIKE = 0.5
"""Largest part of the positions, of those that differ, at which torch's array is the same in all the batch."""
STEPS = 5
"""Largest number of Gauss-Newton steps."""
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
                yield Table(MADE, op.target, op.output, lambda numbers, op=op: op.rewrite(gives(numbers)))


def rows_of_positions(replay: Replay) -> Iterator[Proposal]:
    """Mutations of rows `T D`, the same in all the batch, that a child gives or an operation makes: others, by as much as jax's
    array differs.

    That jax's array differs by the same in every row of the batch is what makes it a cause; it proves nothing where torch's
    array is the same in all rows too.
    """
    jax, wanted = replay.compared.get(replay.place), replay.wanted
    if jax is None or jax.shape != wanted.shape or jax.ndim < 3 or jax.dtype.kind != "f" or not np.isfinite(jax).all():
        return
    apart = np.asarray(jax - wanted, np.float64)[0]
    alike = (wanted == wanted[:1]).all((0, -1))[apart.any(-1)]
    if not alike.size or alike.mean() > MOST_ALIKE:
        return
    more = torch.from_numpy(apart)

    def is_rows(x: torch.Tensor) -> bool:
        return x.shape[-2:] == more.shape and (x.ndim == 2 or same(x, x[:1].expand_as(x)))

    def size(rows: torch.Tensor) -> float:
        return float(f"{more.norm() / rows.reshape(-1, *more.shape)[0].norm():.2g}")

    for site, rows in given_by(replay).items():
        if is_rows(rows):
            edit = partial(replay.given_outputs, {site: rows + more})
            yield propose(ROWS, name_of(replay, site), edit, by=size(rows))
    for op in filter(is_real, replay.operations):
        if is_rows(op.output):
            yield op.instead(ROWS, behind(more.add), by=size(op.output))


def is_vector(x: torch.Tensor) -> bool:
    """True for a vector of several real numbers."""
    return x.is_floating_point() and x.numel() > 1 and x.squeeze().ndim == 1


def solved(replay: Replay, table: Table, jax: np.ndarray) -> torch.Tensor | None:
    """Solve for numbers that give jax's array; None if none do."""

    @cache
    def run(*numbers: float) -> np.ndarray | None:
        return replay.array(table.given(torch.tensor(numbers, dtype=table.numbers.dtype).view_as(table.numbers)))

    found = gauss_newton(run, table.numbers.flatten().tolist(), jax, STEPS, most_slow=0)
    return torch.tensor(found, dtype=table.numbers.dtype).view_as(table.numbers) if off(run(*found), jax) <= EXPLAINED else None


def shown(numbers: torch.Tensor) -> str:
    """Words for numbers: a window function such as 'a Hann window, symmetric', or the first numbers."""
    flat = numbers.flatten().double()
    for name, make in WINDOWS.items():
        if len(flat) > SHOWN and torch.allclose(make(len(flat)).double(), flat, rtol=0, atol=1e-6):
            return name
    more = f", ... ({len(flat)} numbers)" if len(flat) > SHOWN else ""
    return ", ".join(f"{number:.4g}" for number in flat[:SHOWN].tolist()) + more
