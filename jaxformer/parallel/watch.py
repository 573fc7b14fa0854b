"""Who is gone, silent or stuck. One that is ends all others: a run cannot go on without it. No jax is imported here.

gone      its connection is closed, and it said nothing: it was killed, or crashed
silent    it sends no beat: it is stopped, or its machine is gone
stuck     all send beats, and no process gets on
orphaned  the launcher that started it is gone
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxformer.parallel.group import Group, where

LAUNCHER = "JAXFORMER_LAUNCHER"
"""The environment variable with the id of the process that started this one."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """In seconds. Time in which this process is stopped itself does not count."""

    beat: float = 1.0
    silence: float = 20.0
    """Without a beat."""
    usual: float = 30.0
    """Of a step, an evaluation, a checkpoint, or of what one compiles, once there was one; three times the longest so far
    where that is more."""
    patience: float = 1800.0
    """Of anything else: the first of each kind, and what comes between."""


@dataclass
class Watch:
    """Two kinds of threads: one sends beats and judges, and one for each connection receives."""

    group: Group
    limits: Limits
    silent: dict[int, float] = field(default_factory=dict)
    """Number -> seconds since its last beat."""
    seen: dict[int, Any] = field(default_factory=dict)
    """Number -> its last beat."""
    marks: list[int] = field(default_factory=list)
    """How far each process was, a beat before."""
    still: float = 0.0
    """Seconds in which nobody got on."""

    def start(self) -> None:
        """From here on."""
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
        """Process 0: whether anybody gets on. A phase is waited for as long as one process is in it, and not for others."""
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
        """Seconds for a phase of this kind."""
        longest = self.group.work.longest.get(kind)
        return self.limits.patience if longest is None else max(self.limits.usual, 3 * longest)


def beat_of(group: Group) -> dict[str, Any]:
    """What a process says of itself, again and again."""
    work = group.work
    return {"marks": work.marks, "kind": work.kind, "number": work.number, "waits": work.waits, "at": where()}


def _thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()
