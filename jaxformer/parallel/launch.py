"""Launch all processes of a run on this machine, and watch for those that are gone, silent or stuck. Any such process ends the
run, which cannot go on without it.

gone      its connection closed without a message: it was killed, or crashed
silent    it sends no heartbeat: it is stopped, or its machine is gone
stuck     all send heartbeats, and no process makes progress
orphaned  the launcher that started it is gone

Does not import jax.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from jaxformer.parallel.group import Group, where
from jaxformer.parallel.link import LOOPBACK, free_port
from jaxformer.runtime.shutdown import cleaned_up, held

LAUNCHER = "JAXFORMER_LAUNCHER"
"""Environment variable with the process id of the launcher."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits in seconds. Time in which this process itself is stopped does not count."""

    beat: float = 1.0
    silence: float = 20.0
    """Maximum time without a heartbeat."""
    usual: float = 30.0
    """Maximum time of a phase (step, evaluation, checkpoint, compilation) once one of its kind has ended; three times the
    longest so far, if that is more.
    """
    patience: float = 1800.0
    """Maximum time of anything else: the first phase of each kind, and the time between phases."""


@dataclass
class Watch:
    """Watch threads: one sends heartbeats and checks limits, and one for each connection receives."""

    group: Group
    limits: Limits
    silent: dict[int, float] = field(default_factory=dict)
    """Process number -> seconds since its last heartbeat."""
    seen: dict[int, Any] = field(default_factory=dict)
    """Process number -> its last heartbeat."""
    marks: list[int] = field(default_factory=list)
    """Progress counters of all processes, at the previous check."""
    still: float = 0.0
    """Seconds without progress in any process."""

    def start(self) -> None:
        """Start the threads."""
        self.silent = dict.fromkeys(self.group.met.links, 0.0)
        for number in self.silent:
            _thread(lambda number=number: self._receive(number))
        _thread(self._beat)

    def _receive(self, number: int) -> None:
        link, group = self.group.met.links[number], self.group
        while message := link.receive():
            match message:
                case {"value": value}:
                    group.inbox[number].put(value)
                case {"beat": beat}:
                    self.silent[number], self.seen[number] = 0.0, beat
                case {"end": said, "code": code}:
                    group.end(said, code, told=True)
        if not group.is_done:
            group.end(f"{group.whose(number)} is gone without a word: it was killed, or it crashed")

    def _beat(self) -> None:
        group, limits, launcher = self.group, self.limits, int(os.environ.get(LAUNCHER, 0))
        while not group.is_done:
            group.tell(beat=beat_of(group))
            time.sleep(limits.beat)
            if launcher and os.getppid() != launcher:
                group.end("the launcher is gone", 143)
            for number in self.silent:
                self.silent[number] += limits.beat
                if self.silent[number] > limits.silence and not group.is_done:
                    why = "it is stopped, or its machine is gone"
                    group.end(f"{group.whose(number)} has not been heard of for {limits.silence:.0f} s: {why}")
            if group.seat.number == 0:
                self._judge()

    def _judge(self) -> None:
        """End the group if no process makes progress (process 0 only).

        The time limit is that of the phase of a process that works; phases of waiting processes count only if all of them wait.
        """
        group = self.group
        now = {0: beat_of(group)} | {number: self.seen[number] for number in sorted(self.seen)}
        marks = [beat["marks"] for beat in now.values()]
        self.still = self.still + self.limits.beat if marks == self.marks else 0.0
        self.marks = marks
        within = [beat for beat in now.values() if beat["kind"]]
        working = [beat for beat in within if not beat["waits"]]
        phases = [(beat["kind"], beat["number"]) for beat in working or within] or [("", 0)]
        kind, number = max(phases, key=lambda phase: self._limit(phase[0]))
        if self.still > self._limit(kind):
            places = ", ".join(f"{group.whose(number)} is at {beat['at']}" for number, beat in now.items())
            longest = group.work.longest.get(kind)
            usual = "" if longest is None else f" (the longest took {longest:.1f} s)"
            phase = f"{kind} {number}" if kind else "what comes between two steps"
            group.end(f"{phase} has not ended for {self.still:.0f} s{usual}: {places}")

    def _limit(self, kind: str) -> float:
        """Time limit, in seconds, of a phase of this kind."""
        longest = self.group.work.longest.get(kind)
        return self.limits.patience if longest is None else max(self.limits.usual, 3 * longest)


def beat_of(group: Group) -> dict[str, Any]:
    """Return a heartbeat: the state of this process."""
    work = group.work
    return {"marks": work.marks, "kind": work.kind, "number": work.number, "waits": work.waits, "at": where()}


def _thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()


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
