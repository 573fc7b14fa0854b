"""What the search for causes of one comparison has left, and what it knows: layers repeat, and so do their faults."""

import sys
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxformer.parity.trace.call_sites import Site

EACH, ALL = 700_000, 1_400_000
"""Operations of torch's that are replayed for one difference, and for all of a comparison: some ten seconds, and half a minute,
on one core. They are counted, so that a search ends at the same place on every machine that is fast enough."""
SECONDS = 60.0
"""How long all searches of a comparison may take, and what `ALL` operations are for."""
SHOWN_FROM, SHOWN_EVERY = 3.0, 0.5
"""Seconds from which a terminal shows how far a search is, and how often."""
MOST_CALLS = 16_000
"""Of torch's modules that are run again, at most, for all gradients of a comparison."""


@dataclass
class Session:
    """Of one comparison."""

    seconds: float = SECONDS
    """That all searches may take."""
    seconds_left: float = field(init=False)
    left: float = field(init=False)
    """Operations."""
    calls_left: int = MOST_CALLS
    confirmed: dict[Hashable, float] = field(default_factory=dict)
    """Mutations that explained a difference, and the numbers of their free parameters; they are tried first elsewhere."""
    chosen: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)
    """By a formula, the choices that gave torch's array and jax's."""
    stopped: set[Hashable] = field(default_factory=set)
    """Mutations of gradients that explained one."""
    unsteady: str | None = None
    """That the JAX model gives another output each time, once that is known; '' where it does not."""
    unset: Mapping[Site, str] | None = None
    """The lines of jax's calls that read what `jnp.empty` left unset, once that is known."""
    refused: Counter[str] = field(default_factory=Counter)
    """By operators: how often they failed."""

    def __post_init__(self) -> None:
        self.seconds_left, self.left = self.seconds, ALL * self.seconds / SECONDS


@dataclass
class Budget:
    """What is left of it for one difference; used in a `with` statement, in which a terminal shows how far the search is."""

    session: Session
    left: float = field(init=False)
    tried: int = 0
    """Mutations."""
    shown: float = 0.0
    """When the terminal showed it last."""

    def __enter__(self) -> "Budget":
        self.left = min(EACH * self.session.seconds / SECONDS, self.session.left)
        self.ends = time.monotonic() + self.session.seconds_left
        return self

    def __exit__(self, *_: object) -> None:
        self.session.seconds_left = self.ends - time.monotonic()
        if self.shown:
            sys.stderr.write("\r\033[K")

    def spend(self, operations: float) -> None:
        """On one replay."""
        self.left -= operations
        self.session.left -= operations
        now = time.monotonic()
        used = self.session.seconds - (self.ends - now)
        if used > SHOWN_FROM and now - self.shown > SHOWN_EVERY and sys.stderr.isatty():
            self.shown = now
            says = f"searching for the cause: {self.tried:,} changes of torch's code tried"
            sys.stderr.write(f"\r\033[K{says}, {used:.0f} s of at most {self.session.seconds:.0f}")
            sys.stderr.flush()

    @property
    def is_late(self) -> bool:
        """Whether the seconds are over: nothing more is replayed."""
        return time.monotonic() >= self.ends

    @property
    def is_spent(self) -> bool:
        """Whether the search has to end."""
        return self.left <= 0 or self.is_late
