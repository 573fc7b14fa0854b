"""Small tables that torch holds, or makes without its inputs, as slopes and windows: the numbers that give jax's array."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from jaxformer.parity.explain.alterations.altered import Alteration, Inside
from jaxformer.parity.explain.alterations.of_modules import held
from jaxformer.parity.explain.alterations.of_operations import instead
from jaxformer.parity.explain.alterations.operations import Operation
from jaxformer.parity.explain.alterations.rerun import Rerun
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

MOST_NUMBERS, MOST_TABLES = 64, 4
MOST_OPERATIONS = 15_000
"""That are run again for one search."""
FEWEST_EACH = 4
"""Entries of the array for each number: what has fewer proves nothing."""
STEPS = 5
BETTER = 0.5
SHOWN = 3
WINDOWS = {
    f"a {name} window{says}": partial(make, periodic=periodic)
    for name, make in (("Hann", torch.hann_window), ("Hamming", torch.hamming_window), ("Blackman", torch.blackman_window))
    for says, periodic in ((", symmetric", False), (", periodic", True))
}
With = Callable[[torch.Tensor], Inside]
Vector = tuple[str, str, torch.Tensor, With]


def alterations_of(rerun: Rerun) -> Iterator[Alteration]:
    """Buffers first; windows of signals before numbers that are solved for."""
    jax = rerun.compared.get(rerun.place)
    left = MOST_OPERATIONS
    vectors = [*tables(rerun)]
    yield from other_windows(vectors)
    for torch_says, says, table, inside in [each for each in vectors if each[2].numel() <= MOST_NUMBERS][:MOST_TABLES]:
        left -= rerun.cost * (table.numel() + 2)
        if jax is None or left < 0 or jax.shape != rerun.wanted.shape or table.numel() * FEWEST_EACH > jax.size:
            continue
        if (other := solved(rerun, table, inside, jax)) is not None and not torch.equal(other, table):
            yield Alteration(torch_says, f"{says} {named(other)}", partial(inside, other))


def other_windows(vectors: list[Vector]) -> Iterator[Alteration]:
    """Where torch has one, however long it is."""
    for torch_says, says, table, inside in vectors:
        if (own := named(table)) in WINDOWS:
            for window in [each for each in WINDOWS if each != own]:
                other = WINDOWS[window](table.numel(), dtype=table.dtype).view_as(table)
                yield Alteration(torch_says, f"{says} {window}", partial(inside, other))


def tables(rerun: Rerun) -> Iterator[Vector]:
    """Vectors, in words, and how they are altered."""
    for name, buffer in rerun.module.named_buffers():
        if is_vector(buffer):
            yield f"{name} {named(buffer)}", name, buffer.clone(), partial(held, buffer)
    constants: list[torch.Tensor] = []
    for operation in rerun.operations:
        x = operation.output
        if isinstance(x, torch.Tensor) and len(operation.runs) == 1 and is_constant(operation, constants):
            constants.append(x)
            if is_vector(x):
                inside = partial(given, operation)
                yield f"computes {operation.source}", "has there", x, inside


def is_vector(x: torch.Tensor) -> bool:
    """Whether it is a vector of several numbers."""
    return x.is_floating_point() and x.numel() > 1 and x.squeeze().ndim == 1


def is_constant(operation: Operation, constants: list[torch.Tensor]) -> bool:
    """Whether it reads constants alone."""
    read = [each for each in (*operation.args, *operation.kwargs.values()) if isinstance(each, torch.Tensor)]
    return all(any(x.shape == each.shape and torch.equal(x, each) for each in constants) for x in read)


def given(operation: Operation, table: torch.Tensor) -> Inside:
    """Inside, an operation gives a table."""
    return instead(operation, "", lambda f, a, k, n: table.clone()).inside()


def solved(rerun: Rerun, table: torch.Tensor, inside: With, jax: np.ndarray) -> torch.Tensor | None:
    """The numbers that give jax's array, by Gauss and Newton; None where none do."""
    x, made = table.clone(), rerun.array(inside(table))
    if made is None or made.shape != jax.shape:
        return None
    residual = distance(made, jax)
    for _ in range(STEPS):
        if residual <= EXPLAINED / 10:
            break
        if (slopes := slopes_of(rerun, x, inside, made)) is None:
            return None
        moved = x + torch.tensor(np.linalg.lstsq(slopes.T, (jax - made).ravel(), rcond=1e-10)[0]).reshape(x.shape)
        made = rerun.array(inside(moved))
        if made is None or not (better := distance(made, jax)) <= BETTER * residual:
            break
        x, residual = moved, better
    return x if residual <= EXPLAINED else None


def slopes_of(rerun: Rerun, x: torch.Tensor, inside: With, made: np.ndarray) -> np.ndarray | None:
    """What each number changes."""
    found = []
    for i in range(x.numel()):
        beside, step = x.clone(), 1e-6 * max(1e-2, float(x.abs().max()))
        beside.view(-1)[i] += step
        if (moved := rerun.array(inside(beside))) is None or not np.isfinite(moved).all():
            return None
        found.append((moved - made).ravel() / step)
    return np.stack(found)


def named(table: torch.Tensor) -> str:
    """'a Hann window, symmetric', or its first numbers."""
    flat = table.flatten()
    for says, make in WINDOWS.items():
        if len(flat) > SHOWN and torch.allclose(make(len(flat)).double(), flat, rtol=0, atol=1e-6):
            return says
    more = f", ... ({len(flat)} numbers)" if len(flat) > SHOWN else ""
    return ", ".join(f"{number:.4g}" for number in flat[:SHOWN].tolist()) + more
