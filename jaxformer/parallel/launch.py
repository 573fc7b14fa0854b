"""All processes of a run on this machine. No jax is imported here."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from jaxformer.parallel.link import LOOPBACK, free_port
from jaxformer.parallel.watch import LAUNCHER
from jaxformer.runtime.shutdown import cleaned_up, held

GRACE = 10.0
"""Seconds that the others have to end by themselves, once one has ended before its time."""
ALONE = 1.0
"""Seconds in which they hear from each other that a signal has ended one."""
Process = subprocess.Popen[bytes]


def launch(count: int, flags: Sequence[str], command: Sequence[str]) -> int:
    """Start so many processes, each with `jaxformer launch FLAGS -- COMMAND` and a number; the exit code of all.

    It is 0 where all end well, else that of one which a signal ended, or of the first which fails; the others are given some
    seconds, and then are killed.
    """
    with started(count, flags, command) as processes, held(never) as stop:
        ended, since, told, is_told_to_all = list[int](), 0.0, 0, False
        while any(process.poll() is None for process in processes):
            time.sleep(0.05)
            if len(stop.received) > told:
                told = len(stop.received)
                next(process for process in processes if process.poll() is None).send_signal(stop.received[-1])
            failed = failed_in(processes, ended)
            since = since if ended or not failed else time.monotonic()
            ended += failed
            if ended and told and not is_told_to_all and time.monotonic() - since > ALONE:
                is_told_to_all = True  # they may not have met yet, and then none hears of another's end
                for process in processes:
                    process.send_signal(stop.received[-1])
            if ended and time.monotonic() - since > GRACE:
                kill(processes)
                break
        else:
            ended += failed_in(processes, ended)
        if not ended:
            return 0
        first = min(ended, key=lambda number: processes[number].returncode > 0)  # a signal's end is nobody else's doing
        say(f"process {first} of {count} (pid {processes[first].pid}) {how_ended(processes[first])}; all {count} are gone")
        return code_of(processes[first])


def failed_in(processes: Sequence[Process], known: Sequence[int]) -> list[int]:
    """Those that ended with an error, but for those that are known."""
    return [number for number, process in enumerate(processes) if process.poll() and number not in known]


@contextmanager
def started(count: int, flags: Sequence[str], command: Sequence[str]) -> Iterator[list[Process]]:
    """The processes, none of which is left behind. The terminal's Ctrl-C comes to the launcher alone."""
    begin = [sys.executable, "-m", "jaxformer", "launch", f"--coordinator={LOOPBACK[1]}:{free_port()}", f"--processes={count}"]
    environment = os.environ | {LAUNCHER: str(os.getpid())}
    processes: list[Process] = []
    with cleaned_up(lambda: kill(processes)):
        try:
            for number in range(count):
                processes.append(
                    subprocess.Popen(
                        [*begin, f"--process={number}", *flags, "--", *command],
                        env=environment,
                        stdin=None if number == 0 else subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )
            yield processes
        finally:
            kill(processes)


def kill(processes: Sequence[Process]) -> None:
    """Those that are still there."""
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
            say(f"pid {process.pid} did not end by itself, and was killed")


def how_ended(process: Process) -> str:
    """In words."""
    code = process.returncode
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def code_of(process: Process) -> int:
    """As a shell says it."""
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def never() -> NoReturn:
    """The launcher has nothing to save."""
    raise RuntimeError


def say(line: str) -> None:
    """On standard error."""
    print(f"launcher: {line}", file=sys.stderr, flush=True)
