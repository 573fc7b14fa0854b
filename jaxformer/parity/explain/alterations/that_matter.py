"""Which operations an array depends on: no change of another one can give jax's. So a search in much code is one in little."""

import copy
from typing import Any

import numpy as np
import torch

from jaxformer.parity.explain.alterations.operations import Altered, Operation
from jaxformer.parity.explain.alterations.rerun import Rerun

EQUAL, FEWEST = 1e-12, 0.02
"""How far numbers may be apart that are the same, of the largest one; and the least part of an array that tells something."""


def those_that_matter(rerun: Rerun, operations: list[Operation]) -> list[Operation]:
    """By halves: what is pushed together and changes nothing is left out. Those are kept that cannot be pushed."""
    if (array := rerun.array()) is None:
        return operations
    pushed = [each for each in operations if is_pushed(each)]
    left = {each.place for each in pushed} - {each.place for each in among(rerun, pushed, array)}
    return [each for each in operations if each.place not in left]


def narrowed(rerun: Rerun) -> Rerun:
    """The same call, with those of its operations that may be why alone."""
    other = copy.copy(rerun)
    other.operations = those_that_may_be_why(rerun, rerun.operations)
    return other


def those_that_may_be_why(rerun: Rerun, operations: list[Operation]) -> list[Operation]:
    """Where jax has some of torch's numbers, as at the first position, or in the rows without padding: those on which these do
    not depend."""
    jax, torch = rerun.compared.get(rerun.place), rerun.wanted
    if jax is None or jax.shape != torch.shape or jax.dtype.kind != "f" or (array := rerun.array()) is None:
        return []
    equal = np.abs(jax - torch) <= EQUAL * np.abs(torch).max()
    if not FEWEST <= equal.mean() <= 1 - FEWEST or array.shape != torch.shape:
        return []

    def is_left(operation: Operation) -> bool:
        found = rerun.array(Altered({operation.place: push}))
        return found is not None and found.shape == array.shape and bool((found == array)[equal].all())

    return [each for each in operations if is_pushed(each) and is_left(each)]


def among(rerun: Rerun, operations: list[Operation], array: np.ndarray, *, surely: bool = False) -> list[Operation]:
    """Those of a list; `surely` if there is one."""
    if not operations or not (surely or changes(rerun, operations, array)):
        return []
    if len(operations) == 1:
        return operations
    half = len(operations) // 2
    first = among(rerun, operations[:half], array)
    return [*first, *among(rerun, operations[half:], array, surely=not first)]


def changes(rerun: Rerun, operations: list[Operation], array: np.ndarray) -> bool:
    """Whether the array is another one with all of them pushed."""
    try:
        found = rerun.array(Altered({each.place: push for each in operations}))
    except Exception:  # a model refuses in its own ways
        return True
    return found is None or not np.array_equal(found, array)


def is_pushed(operation: Operation) -> bool:
    """Whether its output can be another one, and is all that it changes: it writes to nothing that it is given."""
    name = getattr(operation.function, "__name__", "_")
    writes = (name.endswith("_") and not name.endswith("__")) or name.startswith(("__i", "__set"))
    return not writes and all(isinstance(run.output, torch.Tensor) and may_be_pushed(run.output) for run in operation.runs)


def may_be_pushed(x: torch.Tensor) -> bool:
    """Whole numbers that are all the same may only stand as they are."""
    return x.is_floating_point() or x.dtype == torch.bool or bool((x != x.flatten()[:1]).any())


def push(function: Any, args: Any, kwargs: Any, number: int) -> torch.Tensor:
    """Every entry otherwise, since a norm takes away what is the same for all; and far, since a choice may not see a little.
    Whole numbers keep their range."""
    output = function(*args, **kwargs)
    if output.dtype == torch.bool:
        return ~output
    if not output.is_floating_point():
        return output.flatten().roll(1).view(output.shape)
    way = torch.cos(torch.arange(output.numel(), dtype=output.dtype)).view(output.shape)
    return output + (1 + output.abs().nan_to_num(0, 0, 0).clamp(max=1e3).mean()) * way
