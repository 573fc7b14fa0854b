"""SIGINT (Ctrl-C), SIGTERM and SIGHUP end a command with exit code 130, 143 or 129 and a message, at any time of its run.

Python calls a signal handler in the main thread, between two bytecodes: never while XLA compiles. An exception raised in a
handler is swallowed by callbacks, or crashes jax's threads. So nothing is raised. The system writes the number of the signal
into a pipe; a thread of jaxformer reads it, prints a message, and ends the process. Work that has to be saved first is `held`.
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
"""Seconds within which repeated signals of one kind count as one."""
PATIENCE = 2.0
"""Seconds that held work has to finish by itself, before it is rescued."""


@dataclass
class Held:
    """Work that the first signal does not end."""

    rescue: Callable[[], str]
    """Function that saves the work and returns a message, called from another thread if the work does not finish by itself.
    Raises RuntimeError as long as there is nothing complete to save."""
    received: list[int] = field(default_factory=list)
    """Signals received so far: the work checks this list, and finishes."""
    faults: list[OSError] = field(default_factory=list)
    """Errors of standard output: the work checks this list too."""
    gate: threading.Lock = field(default_factory=threading.Lock)
    """Lock held by whoever saves the work."""


_held: list[Held] = []
_received: list[int] = []
_cleanups: list[Callable[[], Any]] = []
_listening: list[int] = []
_ending = threading.Event()


def listen() -> None:
    """End the process on a signal, from now on. For commands only: a library leaves signals to its user."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for number in heeded():
        signal.signal(number, lambda *_: None)
    _listening.append(writing)
    threading.Thread(target=_watch, args=(reading,), daemon=True).start()


def heeded() -> list[int]:
    """Return the signals that are not ignored: `nohup` and shells start background jobs with some of them ignored."""
    return [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


def received() -> list[int]:
    """Return the signals received so far."""
    return [*_received]


def stop_listening() -> None:
    """Restore the default signal handling before Python shuts down, when no thread runs any more.

    If a signal is ending the process already, wait for that: the exit code is the signal's.
    """
    if _ending.is_set():
        threading.Event().wait()
    if _listening:
        for number in heeded():
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def held(rescue: Callable[[], str]) -> Iterator[Held]:
    """Context manager whose work the first signal does not end: the signal is noted, and the work finishes. A second one ends
    it."""
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
        with work.gate:  # a rescue that has begun ends the process: Python must not shut down meanwhile
            _held.remove(work)
        for which, handler in before.items():
            signal.signal(which, handler)


def tell_held(fault: OSError) -> bool:
    """Report an error of standard output to held work; False if there is none."""
    for work in _held[-1:]:
        work.faults.append(fault)
    return bool(_held)


@contextmanager
def cleaned_up(cleanup: Callable[[], Any]) -> Iterator[None]:
    """Context manager that calls `cleanup`, which has to be quick, before a signal ends the process."""
    _cleanups.append(cleanup)
    try:
        yield
    finally:
        _cleanups.remove(cleanup)


def _watch(pipe: int) -> None:
    """Read signals from the pipe as long as the process lives."""
    first = 0.0
    while True:
        number = os.read(pipe, 1)[0]
        again = number in _received and (number == signal.SIGHUP or time.monotonic() < first + TOGETHER)
        if number not in SIGNALS or again:
            continue  # a closing terminal sends several SIGHUPs; `timeout` signals the process and its group
        _received.append(number)
        first = time.monotonic()
        if _received[1:] or not _held:
            end(128 + number, f"ended at once by {SIGNALS[number]}" if _received[1:] else f"stopped by {SIGNALS[number]}")
        _say(f"{SIGNALS[number]}: the run ends after this step, saved if it can be; once more ends it at once")
        threading.Thread(target=_rescue, args=(_held[-1], number), daemon=True).start()


def _rescue(work: Held, number: int) -> None:
    """Save held work that does not finish in time, because it compiles or evaluates."""
    time.sleep(PATIENCE)
    while work in _held:
        with work.gate, suppress(RuntimeError):
            if work in _held:
                end(128 + number, work.rescue())
        time.sleep(0.2)


def end(code: int, said: str) -> NoReturn:
    """End the process from any thread: run the cleanups, so that nothing is left half-written, and print a last line."""
    _ending.set()
    for cleanup in reversed(_cleanups):
        with suppress(Exception):
            cleanup()
    _say(said)
    with suppress(OSError):  # else jax prints pages about a process that is gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    flushing = threading.Thread(target=_flush, daemon=True)  # a stopped thread may hold the stream's lock
    flushing.start()
    flushing.join(0.5)
    os._exit(code)


def _say(line: str) -> None:
    """Write a line to standard error, and show the cursor again, which a progress bar hides."""
    with suppress(OSError):
        os.write(2, f"{chr(27) + '[?25h' if os.isatty(2) else ''}{line}\n".encode())


def _flush() -> None:
    with suppress(Exception):
        sys.stdout.flush()
