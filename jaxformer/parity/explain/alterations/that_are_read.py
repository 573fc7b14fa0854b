"""Which attributes of modules, and of their configurations, a call reads: no change of another one does anything."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from jaxformer.parity.explain.alterations.rerun import Rerun

Attribute = tuple[int, str]
"""The id of what has it, and its name."""


def those_that_are_read(rerun: Rerun) -> frozenset[Attribute]:
    """In one run; of what cannot be watched, all."""
    modules = [*rerun.module.modules()]
    owners = {
        id(each): each for each in (*modules, *(getattr(module, "config", None) for module in modules)) if each is not None
    }
    read = set[Attribute]()
    rerun.array(watched([*owners.values()], read))
    return frozenset(read)


@contextmanager
def watched(owners: list[Any], read: set[Attribute]) -> Iterator[None]:
    """Inside, what is read of these is noted."""
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
