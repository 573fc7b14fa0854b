"""Launch all processes of a run on this machine. Does not import jax."""

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
"""Seconds that the other processes have to exit by themselves, once one has failed."""
ALONE = 1.0
"""Seconds that the processes have to tell each other that a signal has ended one of them."""
Process = subprocess.Popen[bytes]


def launch(count: int, flags: Sequence[str], command: Sequence[str]) -> int:
    """Start `count` processes, each as `jaxformer launch FLAGS -- COMMAND` with its number; return one exit code for all.

    The code is 0 if all succeed, else that of the process which a signal ended, or of the first that failed. The others have
    GRACE seconds to exit, and then are killed.
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
                is_told_to_all = True  # processes that have not met yet do not hear of another's end
                for process in processes:
                    process.send_signal(stop.received[-1])
            if ended and time.monotonic() - since > GRACE:
                kill(processes)
                break
        else:
            ended += failed_in(processes, ended)
        if not ended:
            return 0
        first = min(ended, key=lambda number: processes[number].returncode > 0)  # ended by a signal: no other caused it
        say(f"process {first} of {count} (pid {processes[first].pid}) {how_ended(processes[first])}; all {count} are gone")
        return code_of(processes[first])


def failed_in(processes: Sequence[Process], known: Sequence[int]) -> list[int]:
    """Return the numbers of the processes that have failed and are not in `known`."""
    return [number for number, process in enumerate(processes) if process.poll() and number not in known]


@contextmanager
def started(count: int, flags: Sequence[str], command: Sequence[str]) -> Iterator[list[Process]]:
    """Context manager: start the processes, and kill those that are left. Ctrl-C in the terminal reaches only the launcher."""
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
    """Kill the processes that are still running."""
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
            say(f"pid {process.pid} did not end by itself, and was killed")


def how_ended(process: Process) -> str:
    """Describe how a process ended."""
    code = process.returncode
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def code_of(process: Process) -> int:
    """Exit code as a shell reports it: 128 + signal number for a process that a signal ended."""
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def never() -> NoReturn:
    """Raise, because the launcher has nothing to save."""
    raise RuntimeError


def say(line: str) -> None:
    """Print a line to standard error."""
    print(f"launcher: {line}", file=sys.stderr, flush=True)
