"""What may be otherwise in torch's code."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

from jaxformer.parity.capture.call_sites import Site

Inside = AbstractContextManager[Any]


class Alteration(NamedTuple):
    """One thing, and what it is instead."""

    torch: str
    """What torch has there, in words."""
    jax: str
    """What is tried instead."""
    inside: Callable[[], Inside]
    """Inside, torch is altered."""
    near: tuple[Callable[[], Inside], ...] = ()
    """The same with numbers beside: where one gives as much, it acts in steps, as of what is rounded to whole numbers."""

    def __str__(self) -> str:
        return f"torch {self.torch}; jax {self.jax}"


class Dial(NamedTuple):
    """A number that is solved for."""

    torch: str
    jax: str
    """With '{}' where the number stands."""
    start: float
    """torch's."""
    inside: Callable[[Any], Inside]
    sure: bool = False
    """Whether it is searched for even where a small change of it does not lead to jax's array."""
    seeds: tuple[float, ...] = ()
    """Where the search begins, if torch has no such number."""
    absent: bool = False
    """Whether None may stand for it, as infinity: that leaves it out, or is another number to the code that reads it."""

    def at(self, value: float, said: str) -> Alteration:
        """With one number."""
        if self.absent and math.isinf(value):
            return Alteration(self.torch, self.jax.format("left out"), lambda: self.inside(None))
        return Alteration(self.torch, self.jax.format(said), lambda: self.inside(value))


class Found(NamedTuple):
    """An alteration that gave an array of jax's."""

    owner: Site
    """torch's call whose code is altered."""
    torch: str
    jax: str
    number: float
    """The one that was solved for; 0 where there is none."""


@contextmanager
def together(*altered: Inside) -> Iterator[None]:
    """Inside, all of these are altered."""
    with ExitStack() as stack:
        for each in altered:
            stack.enter_context(each)
        yield
