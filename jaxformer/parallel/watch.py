"""Watch for processes that are gone, silent or stuck. Any such process ends the run, which cannot go on without it.

gone      its connection closed without a message: it was killed, or crashed
silent    it sends no heartbeat: it is stopped, or its machine is gone
stuck     all send heartbeats, and no process makes progress
orphaned  the launcher that started it is gone

Does not import jax.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxformer.parallel.group import Group, where

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
