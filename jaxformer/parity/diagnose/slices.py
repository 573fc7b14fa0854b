"""Slices: the operations and settings that an array depends on. No mutation of others can give jax's array, so a search only
needs the slice."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch

from jaxformer.parity.diagnose.calls import writes
from jaxformer.parity.diagnose.trace import Op, Rewrite

Run = Callable[..., np.ndarray | None]
"""Function that replays a call, with an edit or without; returns the array, or None if it is not made."""
Attribute = tuple[int, str]
"""Attribute: the id of its owner, and its name."""
EQUAL, FEWEST = 1e-12, 0.02
"""Tolerance of equal entries, relative to the largest one; and the least share of right and of wrong entries that is used."""


def slice_of(run: Run, operations: list[Op]) -> list[Op]:
    """Return the operations that the array depends on, found by bisection.

    Operations whose outputs are pushed together without a change of the array are left out. Operations that cannot be pushed
    are kept.
    """
    if (array := run()) is None:
        return operations
    several = [each for each in operations if is_pushed(each)]
    left = {each.place for each in several} - {each.place for each in among(run, several, array)}
    return [each for each in operations if each.place not in left]


def suspects_of(run: Run, jax: np.ndarray | None, torchs: np.ndarray, operations: list[Op]) -> list[Op]:
    """Return the operations on which jax's right entries do not depend, so that they may be the ones that differ.

    Some entries have to be right and others wrong, as at the first position or in the rows without padding; else empty.
    """
    if jax is None or jax.shape != torchs.shape or jax.dtype.kind != "f" or (array := run()) is None:
        return []
    equal = np.abs(jax - torchs) <= EQUAL * np.abs(torchs).max()
    if not FEWEST <= equal.mean() <= 1 - FEWEST or array.shape != torchs.shape:
        return []

    def is_left(operation: Op) -> bool:
        found = when_pushed(run, [operation])
        return found is not None and found.shape == array.shape and bool((found == array)[equal].all())

    return [each for each in operations if is_pushed(each) and is_left(each)]


def among(run: Run, operations: list[Op], array: np.ndarray, *, surely: bool = False) -> list[Op]:
    """Return the operations of a list that the array depends on; `surely` if there is at least one."""
    if not operations or not (surely or changes(run, operations, array)):
        return []
    if len(operations) == 1:
        return operations
    half = len(operations) // 2
    first = among(run, operations[:half], array)
    return [*first, *among(run, operations[half:], array, surely=not first)]


def changes(run: Run, operations: list[Op], array: np.ndarray) -> bool:
    """True if the array changes when all of these operations are pushed."""
    found = when_pushed(run, operations)
    return found is None or not np.array_equal(found, array)


def when_pushed(run: Run, operations: list[Op]) -> np.ndarray | None:
    """Return the array when all of these operations are pushed; None if the model's code then fails, as at an id beyond a
    table."""
    try:
        return run(pushed(operations))
    except Exception:  # any error of the model's code
        return None


def is_pushed(operation: Op) -> bool:
    """True if an operation can be pushed: its outputs are single tensors that may change, and it writes to no argument."""
    return not writes(operation.function) and all(
        isinstance(run.output, torch.Tensor) and may_be_pushed(run.output) for run in operation.runs
    )


def may_be_pushed(x: torch.Tensor) -> bool:
    """True if a tensor's entries can be changed; integers that are all equal cannot be, since pushing permutes them."""
    return x.is_floating_point() or x.dtype == torch.bool or bool((x != x.flatten()[:1]).any())


def pushed(operations: list[Op]) -> Rewrite:
    """Rewrite in which the outputs of these operations are pushed."""
    return Rewrite({each.place: partial(push, each) for each in operations})


def push(operation: Op, function: Any, args: Any, kwargs: Any, number: int) -> torch.Tensor:
    """Compute an operation, and push its output.

    Each float is pushed by its own amount, since a norm removes a common one, and far, since a comparison may not notice a
    small push. Integers are permuted, so that they keep their range. Booleans become the opposite of those that the operation
    gave before: of two operations that pass them on, the second would turn back what the first has inverted.
    """
    output = function(*args, **kwargs)
    if output.dtype == torch.bool:
        before = [each.output for each in operation.runs[number : number + 1] if each.output.shape == output.shape]
        return ~(before[0] if before else output)
    if not output.is_floating_point():
        return output.flatten().roll(1).view(output.shape)
    way = torch.cos(torch.arange(output.numel(), dtype=output.dtype)).view(output.shape)
    return output + (1 + output.abs().nan_to_num(0, 0, 0).clamp(max=1e3).mean()) * way


def uses_of(run: Run, module: Any) -> frozenset[Attribute]:
    """Return the attributes of modules and configurations that one run reads; all of an owner's, if it cannot be watched."""
    modules = [*module.modules()]
    owners = {id(each): each for each in (*modules, *(getattr(one, "config", None) for one in modules)) if each is not None}
    read = set[Attribute]()
    run(watched([*owners.values()], read))
    return frozenset(read)


@contextmanager
def watched(owners: list[Any], read: set[Attribute]) -> Iterator[None]:
    """Edit: attributes that are read from these owners are added to `read`."""
    kinds = [(owner, type(owner)) for owner in owners]
    for owner, kind in kinds:
        try:
            object.__setattr__(owner, "__class__", noting(kind, read))
        except TypeError:  # a class with another memory layout
            read |= {(id(owner), name) for name in vars(owner)}
    try:
        yield
    finally:
        for owner, kind in kinds:
            with suppress(TypeError):
                object.__setattr__(owner, "__class__", kind)


def noting(kind: type, read: set[Attribute]) -> type:
    """Return a subclass that notes which attributes of its instances are read."""
    inherited: Any = kind.__getattribute__

    def noted(self: Any, name: str) -> Any:
        read.add((id(self), name))
        return inherited(self, name)

    return type(kind.__name__, (kind,), {"__module__": kind.__module__, "__getattribute__": noted})
