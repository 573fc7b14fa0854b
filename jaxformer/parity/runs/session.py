"""State of the search for causes in one comparison: the remaining budget, and what was learned, since faults repeat by
layer."""

import sys
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxformer.parity.trace.call_sites import Site

EACH, ALL = 700_000, 1_400_000
"""Operations of torch's code that are replayed for one of several differences, and for a whole comparison.

They take about ten seconds and half a minute on one core. Operations are counted, so that a search ends at the same place on
every machine that is fast enough.
"""
SECONDS = 60.0
"""Default time limit in seconds for all searches of a comparison; `ALL` operations belong to this limit."""
SHOWN_FROM, SHOWN_EVERY = 3.0, 0.5
"""Seconds after which a terminal shows the progress of a search, and the interval between updates."""
MOST_CALLS = 16_000
"""Largest number of calls of torch's modules that are replayed for all gradients of a comparison."""


@dataclass
class Session:
    """State of the searches of one comparison."""

    seconds: float = SECONDS
    """Seconds that all searches may take."""
    seconds_left: float = field(init=False)
    left: float = field(init=False)
    """Operations left."""
    is_single: bool = False
    """True if the comparison has a single difference: its search may take the whole budget."""
    calls_left: int = MOST_CALLS
    confirmed: dict[Hashable, float] = field(default_factory=dict)
    """Mutations that explained a difference, with the values of their free parameters; they are tried first elsewhere."""
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    """Two mutations each that explained a difference together, with their values."""
    chosen: dict[Hashable, tuple[Any, Any]] = field(default_factory=dict)
    """Choices that gave torch's array and jax's, by formula."""
    stopped: set[Hashable] = field(default_factory=set)
    """Mutations that stop a gradient and explained a difference of gradients."""
    unsteady: str | None = None
    """Message that the JAX model's output changes from run to run; '' if it does not, None if not yet known."""
    unset: Mapping[Site, str] | None = None
    """Lines that make `jnp.empty` arrays, by the jax calls that read them; None if not yet known."""
    refused: Counter[str] = field(default_factory=Counter)
    """Number of failures of each operator."""

    def __post_init__(self) -> None:
        self.seconds_left, self.left = self.seconds, ALL * self.seconds / SECONDS


@dataclass
class Budget:
    """Budget of the search for one difference: a context manager in which a terminal shows the search's progress."""

    session: Session
    left: float = field(init=False)
    tried: int = 0
    """Number of mutations tried."""
    shown: float = 0.0
    """Time at which the terminal last showed the progress."""

    def __enter__(self) -> "Budget":
        most = ALL if self.session.is_single else EACH
        self.left = min(most * self.session.seconds / SECONDS, self.session.left)
        self.ends = time.monotonic() + self.session.seconds_left
        return self

    def __exit__(self, *_: object) -> None:
        self.session.seconds_left = self.ends - time.monotonic()
        if self.shown:
            sys.stderr.write("\r\033[K")

    def spend(self, operations: float) -> None:
        """Count the operations of one replay."""
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
        """True if the time is up: nothing more is replayed."""
        return time.monotonic() >= self.ends

    @property
    def is_spent(self) -> bool:
        """True if the search has to end."""
        return self.left <= 0 or self.is_late
