"""Who is gone, silent or stuck. One that is ends all others: a run cannot go on without it. No jax is imported here.

gone      its connection is closed, and it said nothing: it was killed, or crashed
silent    it sends no beat: it is stopped, or its machine is gone
stuck     all send beats, and no process gets on with a step
orphaned  the launcher that started it is gone
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxformer.processes.group import Group, where

LAUNCHER = "JAXFORMER_LAUNCHER"
"""The environment variable with the id of the process that started this one."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """In seconds. Time in which this process is stopped itself does not count."""

    beat: float = 1.0
    silence: float = 20.0
    """Without a beat."""
    step: float = 30.0
    """Of a step, once one was taken; three times the longest so far where that is more, since another shape is compiled."""
    patience: float = 1800.0
    """Of anything else: the first step, an evaluation, a checkpoint."""


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
        """Process 0: whether anybody gets on. A step is waited for as long as one process is in it."""
        group, limits = self.group, self.limits
        now = {0: beat_of(group)} | {number: self.seen[number] for number in sorted(self.seen)}
        marks = [beat["marks"] for beat in now.values()]
        self.still = self.still + limits.beat if marks == self.marks else 0.0
        self.marks = marks
        step = next((beat["step"] for beat in now.values() if beat["step"]), "")
        is_usual = bool(step and group.work.longest)
        if self.still > (max(limits.step, 3 * group.work.longest) if is_usual else limits.patience):
            places = ", ".join(f"{group.whose(number)} is at {beat['at']}" for number, beat in now.items())
            usual = f" (the longest took {group.work.longest:.1f} s)" if is_usual else ""
            group.end(f"{step or 'what comes between two steps'} has not ended for {self.still:.0f} s{usual}: {places}")


def beat_of(group: Group) -> dict[str, Any]:
    """What a process says of itself, again and again."""
    return {"marks": group.work.marks, "step": group.work.what, "at": where()}


def _thread(run: Callable[[], None]) -> None:
    threading.Thread(target=run, daemon=True).start()
