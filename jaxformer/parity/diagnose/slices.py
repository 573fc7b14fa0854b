"""Which operations an array depends on: no change of another one can give jax's. So a search in much code is one in little."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from jaxformer.parity.diagnose.calls import writes
from jaxformer.parity.diagnose.trace import Op, Rewrite

Run = Callable[..., np.ndarray | None]
"""Runs a call again, altered by an edit; the array, or None where it is not made."""
Attribute = tuple[int, str]
"""The id of what has it, and its name."""
EQUAL, FEWEST = 1e-12, 0.02
"""How far numbers may be apart that are the same, of the largest one; and the least part of an array that tells something."""


def slice_of(run: Run, operations: list[Op]) -> list[Op]:
    """By halves: what is pushed together and changes nothing is left out. Those are kept that cannot be pushed."""
    if (array := run()) is None:
        return operations
    pushed = [each for each in operations if is_pushed(each)]
    left = {each.place for each in pushed} - {each.place for each in among(run, pushed, array)}
    return [each for each in operations if each.place not in left]


def suspects_of(run: Run, jax: np.ndarray | None, torchs: np.ndarray, operations: list[Op]) -> list[Op]:
    """Where jax has some of torch's numbers, as at the first position, or in the rows without padding: those on which these do
    not depend."""
    if jax is None or jax.shape != torchs.shape or jax.dtype.kind != "f" or (array := run()) is None:
        return []
    equal = np.abs(jax - torchs) <= EQUAL * np.abs(torchs).max()
    if not FEWEST <= equal.mean() <= 1 - FEWEST or array.shape != torchs.shape:
        return []

    def is_left(operation: Op) -> bool:
        found = run(Rewrite({operation.place: push}))
        return found is not None and found.shape == array.shape and bool((found == array)[equal].all())

    return [each for each in operations if is_pushed(each) and is_left(each)]


def among(run: Run, operations: list[Op], array: np.ndarray, *, surely: bool = False) -> list[Op]:
    """Those of a list; `surely` if there is one."""
    if not operations or not (surely or changes(run, operations, array)):
        return []
    if len(operations) == 1:
        return operations
    half = len(operations) // 2
    first = among(run, operations[:half], array)
    return [*first, *among(run, operations[half:], array, surely=not first)]


def changes(run: Run, operations: list[Op], array: np.ndarray) -> bool:
    """Whether the array is another one with all of them pushed."""
    try:
        found = run(Rewrite({each.place: push for each in operations}))
    except Exception:  # a model refuses in its own ways
        return True
    return found is None or not np.array_equal(found, array)


def is_pushed(operation: Op) -> bool:
    """Whether its output can be another one, and is all that it changes: it writes to nothing that it is given."""
    return not writes(operation.function) and all(
        isinstance(run.output, torch.Tensor) and may_be_pushed(run.output) for run in operation.runs
    )


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


def uses_of(run: Run, module: Any) -> frozenset[Attribute]:
    """In one run; of what cannot be watched, all."""
    modules = [*module.modules()]
    owners = {id(each): each for each in (*modules, *(getattr(one, "config", None) for one in modules)) if each is not None}
    read = set[Attribute]()
    run(watched([*owners.values()], read))
    return frozenset(read)


@contextmanager
def watched(owners: list[Any], read: set[Attribute]) -> Iterator[None]:
    """Edit, what is read of these is noted."""
    kinds = [(owner, type(owner)) for owner in owners]
    for owner, kind in kinds:
        try:
            object.__setattr__(owner, "__class__", noting(kind, read))
        except TypeError:  # its memory is laid out in a way of its own
            read |= {(id(owner), name) for name in vars(owner)}
    try:
        yield
    finally:
        for owner, kind in kinds:
            with suppress(TypeError):
                object.__setattr__(owner, "__class__", kind)


def noting(kind: type, read: set[Attribute]) -> type:
    """The same class, but that it notes what is read of its instances."""
    inherited: Any = kind.__getattribute__

    def noted(self: Any, name: str) -> Any:
        read.add((id(self), name))
        return inherited(self, name)

    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__getattribute__": noted})
