"""What a run asks of the processes that it runs in; one that joined nobody is the first of one. No jax is imported here."""

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
"""Whose lines say nothing of where a run is."""


@dataclass
class Work:
    """What the main thread does, as the others are told."""

    marks: int = 0
    """Phases that were begun and ended, and programs that were run, which says how far it is."""
    kind: str = ""
    """Of the phase that it is in, as "step"; empty between phases."""
    number: int = 0
    """The step that the phase belongs to."""
    waits: bool = False
    """For what another process says; it is not the one that keeps the others."""
    begun: float = 0.0
    """When its phase began, or went on behind a compilation."""
    longest: dict[str, float] = field(default_factory=dict)
    """Kind -> seconds of the longest phase so far; what was compiled in it counts as a kind of its own."""


@dataclass
class Group:
    """This process as one of several, each connected with process 0."""

    seat: Seat
    met: Met
    work: Work = field(default_factory=Work)
    is_done: bool = False
    """All have come to their end: nobody is missed any more."""

    def __post_init__(self) -> None:
        self.inbox: dict[int, SimpleQueue[Any]] = {number: SimpleQueue() for number in self.met.links}
        self._ending = threading.Lock()

    def whose(self, number: int) -> str:
        """A process, for a person."""
        return f"process {number} of {self.seat.count} ({self.met.whose[number]})"

    def tell(self, **message: Any) -> None:
        """Send to all that this process is connected with; those that are gone are found by who receives."""
        for link in self.met.links.values():
            try:
                link.send(**message)
            except OSError:
                continue

    def exchange(self, value: Any) -> list[Any]:
        """What every process says, in the order of their numbers, once all have said it; values are those of json."""
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
        """Tell the others, say a line, and end at once: the first reason counts. What this process was told, it hands on."""
        self._ending.acquire()  # for good: a second reason waits here until the process has ended
        self.tell(end=said if told else f"{self.whose(self.seat.number)} ended: {said}", code=code)
        shutdown.end(code, f"{self.seat}: {said}")

    def ended_by_signal(self) -> None:
        """Tell the others that a signal ends this process."""
        if not self._ending.acquire(blocking=False):
            return
        number = shutdown.received()[-1]
        self.tell(end=f"{self.whose(self.seat.number)} was stopped by {shutdown.SIGNALS[number]}", code=128 + number)

    def finish(self) -> None:
        """Wait until all others have come to their end."""
        self.exchange("done")
        self.is_done = True


_groups: list[Group] = []


def enter(group: Group) -> None:
    """From here on this process is one of the group, until it ends."""
    _groups.append(group)


def current() -> Group | None:
    """The group that this process joined."""
    return _groups[-1] if _groups else None


def count() -> int:
    """How many processes the run has."""
    return _groups[-1].seat.count if _groups else 1


def is_first() -> bool:
    """Whether this process prints, and writes the run's folder."""
    return not _groups or _groups[-1].seat.number == 0


def exchange(value: T) -> list[T]:
    """What every process says, once all have said it."""
    return _groups[-1].exchange(value) if _groups else [value]


def from_first(look: Callable[[], T]) -> T:
    """What the first process sees; the others do not look. Of json's values."""
    return exchange(look() if is_first() else None)[0]  # pyright: ignore[reportReturnType]


def run_together(f: Any, *given: Any, **static: Any) -> Any:
    """f(*given) of a function of jax.jit, once all processes have compiled it: on a CPU, who is first at a collective waits for
    the others for 30 s alone."""
    if _groups:
        work = _groups[-1].work
        with timed(f"the compilation of {work.kind or 'a program behind step'}", work.number):
            f.lower(*given, **static).compile()
            exchange("compiled")
    return f(*given, **static)


def check_alike(facts: Mapping[str, Any]) -> None:
    """InputError, in every process, where one says something else."""
    if said := difference(dict(enumerate(exchange(facts)))):
        raise InputError(said)


@contextmanager
def timed(kind: str, number: int) -> Iterator[None]:
    """Inside is a phase of a run: a step, or what belongs to one. All processes come through it together, and it is timed."""
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


def where() -> str:
    """The line that the main thread is at, outside of libraries."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and LIBRARIES & {*Path(frame.f_code.co_filename).parts}:
        frame = frame.f_back
    return "its end" if frame is None else f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
