"""SIGINT (Ctrl-C), SIGTERM and SIGHUP end a command with 130, 143 or 129 and a word, from its first line to its last.

Python calls a handler in the main thread, between two bytecodes: never while XLA compiles, and what a handler raises is
swallowed by callbacks or ends jax's threads in a crash. So nothing is raised. The system writes the number of the signal into
a pipe, and a thread of our own reads it, says so, and ends the process. Work that wants to save itself first is `held`.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

SIGNALS = {int(signal.SIGINT): "Ctrl-C", int(signal.SIGTERM): "SIGTERM", int(signal.SIGHUP): "SIGHUP"}
TOGETHER = 0.1
"""Seconds in which several of one kind are one."""
PATIENCE = 2.0
"""Seconds that held work has to end by itself, before it is rescued."""


@dataclass
class Held:
    """Work that a first signal does not end."""

    rescue: Callable[[], str]
    """Saves the work, called from another thread when the work does not come to its end by itself; what there is to say
    then. It raises RuntimeError as long as there is nothing whole to save."""
    received: list[int] = field(default_factory=list)
    """Signals, as they come: the work looks here, and ends."""
    faults: list[OSError] = field(default_factory=list)
    """Of standard output: the work looks here too."""
    gate: threading.Lock = field(default_factory=threading.Lock)
    """Whoever saves holds it."""


_held: list[Held] = []
_received: list[int] = []
_cleanups: list[Callable[[], Any]] = []
_listening: list[int] = []
_ending = threading.Event()


def listen() -> None:
    """From here on a signal ends the process. For commands: a library leaves the signals to its user."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in heeded():
        signal.signal(number, lambda *_: None)
    _listening.append(writing)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()


def heeded() -> list[int]:
    """Those that whoever started the process did not have it ignore, as `nohup` and shells do for work in the background."""
    return [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


def received() -> list[int]:
    """The signals so far."""
    return [*_received]


def stop_listening() -> None:
    """While Python ends, no thread runs any more: from here on the system ends the process. Where a signal already does,
    wait for that, as the exit code is the signal's."""
    if _ending.is_set():
        threading.Event().wait()
    if _listening:
        for number in heeded():
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def held(rescue: Callable[[], str]) -> Iterator[Held]:
    """Inside, the first signal is noted and does not end the process; a second one is not held back."""
    work = Held(rescue)

    def note(number: int, frame: Any) -> None:
        work.received.append(number)
        for which in before:
            signal.signal(which, before[which])

    before = {which: signal.signal(which, note) for which in heeded()}
    _held.append(work)
    try:
        yield work
    finally:
        with work.gate:  # a rescue that has begun ends the process; Python must not end under it
            _held.remove(work)
        for which, handler in before.items():
            signal.signal(which, handler)


def tell_held(fault: OSError) -> bool:
    """Tell held work that standard output fails; False where there is none."""
    for work in _held[-1:]:
        work.faults.append(fault)
    return bool(_held)


@contextmanager
def cleaned_up(cleanup: Callable[[], Any]) -> Iterator[None]:
    """A signal that ends the process inside calls `cleanup` first, which has to be quick."""
    _cleanups.append(cleanup)
    try:
        yield
    finally:
        _cleanups.remove(cleanup)


def _watch(pipe: int) -> None:
    """Read signals, for as long as the process lives."""
    first = 0.0
    while True:
        number = os.read(pipe, 1)[0]
        again = number in _received and (number == signal.SIGHUP or time.monotonic() < first + TOGETHER)
        if number not in SIGNALS or again:
            continue  # a terminal that goes away sends several, and `timeout` one to the process and one to its group
        _received.append(number)
        first = time.monotonic()
        if _received[1:] or not _held:
            end(128 + number, f"ended at once by {SIGNALS[number]}" if _received[1:] else f"stopped by {SIGNALS[number]}")
        _say(f"{SIGNALS[number]}: the run ends after this step, saved if it can be; once more ends it at once")
        threading.Thread(target=_rescue, args=(_held[-1], number), daemon=True).start()


def _rescue(work: Held, number: int) -> None:
    """Save work that does not come to its end in time: it compiles, or evaluates."""
    time.sleep(PATIENCE)
    while work in _held:
        with work.gate, suppress(RuntimeError):
            if work in _held:
                end(128 + number, work.rescue())
        time.sleep(0.2)


def end(code: int, said: str) -> NoReturn:
    """Leave nothing half-written, say a line, the last one, and end, from any thread."""
    _ending.set()
    for cleanup in reversed(_cleanups):
        with suppress(Exception):
            cleanup()
    _say(said)
    with suppress(OSError):  # jax has a page of its own to say where a process is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    flushing = threading.Thread(target=_flush, daemon=True)  # whoever was stopped may hold its lock
    flushing.start()
    flushing.join(0.5)
    os._exit(code)


def _say(line: str) -> None:
    """One line on standard error, and the cursor that a progress line hides."""
    with suppress(OSError):
        os.write(2, f"{chr(27) + '[?25h' if os.isatty(2) else ''}{line}\n".encode())


def _flush() -> None:
    with suppress(Exception):
        sys.stdout.flush()
