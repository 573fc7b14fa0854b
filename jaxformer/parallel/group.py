"""Group of the processes that run together; a process that joined no group is the first of one. Does not import jax."""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

from jaxformer.errors import InputError
from jaxformer.parallel.link import Met, Seat, difference
from jaxformer.runtime import shutdown

T = TypeVar("T")
LIBRARIES = {"jax", "jaxlib", "flax", "orbax", "numpy"}
"""Packages whose stack frames do not tell where a run is."""


@dataclass
class Work:
    """State of the main thread, as the other processes are told."""

    marks: int = 0
    """Progress counter: incremented whenever a phase begins or ends."""
    kind: str = ""
    """Kind of the current phase, as "step"; empty between phases."""
    number: int = 0
    """Step that the phase belongs to."""
    waits: bool = False
    """True while this process waits for a value from another one, so that it is not the one that delays the group."""
    begun: float = 0.0
    """Monotonic time when the current phase began, or resumed after a compilation."""
    longest: dict[str, float] = field(default_factory=dict)
    """Phase kind -> seconds of the longest phase so far; compilation within a phase is a kind of its own."""


@dataclass
class Group:
    """Connections of this process to the group: each other process is connected to process 0."""

    seat: Seat
    met: Met
    work: Work = field(default_factory=Work)
    is_done: bool = False
    """True when all processes have reached their end; lost connections no longer matter."""

    def __post_init__(self) -> None:
        self.inbox: dict[int, SimpleQueue[Any]] = {number: SimpleQueue() for number in self.met.links}
        self._ending = threading.Lock()

    def whose(self, number: int) -> str:
        """Describe a process for people."""
        return f"process {number} of {self.seat.count} ({self.met.whose[number]})"

    def tell(self, **message: Any) -> None:
        """Send a message to every connected process. Lost processes are ignored here; the receiving threads detect them."""
        for link in self.met.links.values():
            try:
                link.send(**message)
            except OSError:
                continue

    def exchange(self, value: Any) -> list[Any]:
        """Send a JSON value to all processes; return the values of all, by process number, once all have arrived."""
        self.work.waits = True
        if self.seat.number:
            self.tell(value=value)
            values = self.inbox[0].get()
        else:
            values = [value, *(self.inbox[number].get() for number in range(1, self.seat.count))]
            self.tell(value=values)
        self.work.waits = False
        return values

    def end(self, said: str, code: int = 2, *, told: bool = False) -> NoReturn:
        """Tell the others, print a line, and exit at once; only the first reason counts. Received reasons are passed on."""
        self._ending.acquire()  # never released: a second reason waits here until the process has exited
        self.tell(end=said if told else f"{self.whose(self.seat.number)} ended: {said}", code=code)
        shutdown.end(code, f"{self.seat}: {said}")

    def ended_by_signal(self) -> None:
        """Tell the others that a signal ends this process."""
        if not self._ending.acquire(blocking=False):
            return
        number = shutdown.received()[-1]
        self.tell(end=f"{self.whose(self.seat.number)} was stopped by {shutdown.SIGNALS[number]}", code=128 + number)

    def finish(self) -> None:
        """Wait until all other processes have reached their end."""
        self.exchange("done")
        self.is_done = True


_groups: list[Group] = []


def enter(group: Group) -> None:
    """Make this process a member of the group until it exits."""
    _groups.append(group)


def current() -> Group | None:
    """Return the group that this process joined, or None."""
    return _groups[-1] if _groups else None


def count() -> int:
    """Number of processes of the run."""
    return _groups[-1].seat.count if _groups else 1


def is_first() -> bool:
    """True if this process prints and writes the run's folder."""
    return not _groups or _groups[-1].seat.number == 0


def exchange(value: T) -> list[T]:
    """Return the values of all processes, in order of process number, once all have arrived."""
    return _groups[-1].exchange(value) if _groups else [value]


def from_first(look: Callable[[], T]) -> T:
    """Return the result of `look` in the first process, a JSON value; the other processes do not call it."""
    return exchange(look() if is_first() else None)[0]  # pyright: ignore[reportReturnType]


def run_together(f: Any, *given: Any, **static: Any) -> Any:
    """Call the jitted function `f` once all processes have compiled it.

    On CPU, the first process at a collective waits only 30 s for the others.
    """
    if _groups:
        work = _groups[-1].work
        with timed(f"the compilation of {work.kind or 'a program after step'}", work.number):
            f.lower(*given, **static).compile()
            exchange("compiled")
    return f(*given, **static)


def check_alike(facts: Mapping[str, Any]) -> None:
    """Raise InputError, in every process, if the facts of any process differ."""
    if said := difference(dict(enumerate(exchange(facts)))):
        raise InputError(said)


@contextmanager
def timed(kind: str, number: int) -> Iterator[None]:
    """Context manager that times a phase of a run (a step, or a part of one), which all processes pass through together."""
    if not _groups:
        yield
        return
    work = _groups[-1].work
    within = work.kind, work.number
    work.marks, work.kind, work.number, work.begun = work.marks + 1, kind, number, time.monotonic()
    try:
        yield
    finally:
        now = time.monotonic()
        work.longest[kind] = max(work.longest.get(kind, 0.0), now - work.begun)
        work.marks, (work.kind, work.number), work.begun = work.marks + 1, within, now


@contextmanager
def _without_collection() -> Iterator[None]:
    """Context manager that keeps the garbage collector from running.

    `sys._current_frames` holds a lock of the interpreter; a finalizer that needs it waits for ever (python/cpython#106883).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def where() -> str:
    """Return the line that the main thread is at, outside of libraries."""
    with _without_collection():
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and LIBRARIES & {*Path(frame.f_code.co_filename).parts}:
        frame = frame.f_back
    return "its end" if frame is None else f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
