"""Measure items: check that all sides do the same work, warm them up, time them in turn, and record the results."""

import math
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from jaxformer.bench import limits
from jaxformer.bench.items import JAXFORMER, Item, key_of, lacking
from jaxformer.bench.limits import Peak
from jaxformer.bench.results import NOISE, Result, SideResult
from jaxformer.bench.runners import InWorker, Runner, WholeProcess, WorkerError, ask_once
from jaxformer.errors import JaxformerError, ParityError

LOSS_TOLERANCE = {"float32": 1e-5, "bf16": 1e-3}
"""Relative tolerance for the loss on the first batch, by the precision of products."""
RUN_TOLERANCE = 0.1
"""Relative tolerance for validation losses after whole runs from random weights: both sides learned equally well."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a measurement."""

    peers: tuple[str, ...]
    rounds: int
    options: dict[str, Any]
    """Options of `prepare`."""
    validate: bool
    """Measure the loss on held-out data after the last round."""


@dataclass
class Rounds:
    """Sides that run, their seconds so far, and the sides that were skipped."""

    expected: list[float] = field(default_factory=list)
    """jaxformer's loss, or the ids that it writes."""
    runners: dict[str, Runner] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    marks: list[float] = field(default_factory=list)
    """Seconds of a fixed piece of work before each round, and after the last."""

    def leave_out(self, peer: str, error: JaxformerError) -> None:
        """Skip a side that failed; if it is jaxformer, raise the error."""
        if peer == JAXFORMER:
            raise error
        self.skipped[peer] = str(error)
        for held in (self.runners, self.seconds):
            held.pop(peer, None)

    def whole(self) -> int:
        """Number of rounds that every side has finished."""
        return min((len(seconds) for seconds in self.seconds.values()), default=0)

    def paces(self) -> list[float]:
        """Seconds of the fixed piece of work around each finished round, the longer of before and after."""
        return [max(around) for around in pairwise(self.marks)][: self.whole()]

    def quiet(self) -> list[int]:
        """Return the rounds in which the machine was not slower than in the best one by more than NOISE."""
        paces = self.paces()
        return [i for i, pace in enumerate(paces) if pace <= (1 + NOISE) * min(paces)]

    def kept(self, n: int) -> list[int]:
        """Return the n finished rounds in which the machine was fastest, in order; all, if there are no more."""
        paces = self.paces()
        return sorted(sorted(range(self.whole()), key=lambda i: paces[i] if i < len(paces) else math.inf)[:n])


def measure_item(item: Item, plan: Plan, peak: Peak) -> tuple[Result | None, bool]:
    """Measure an item; return its result, and True if Ctrl-C ended it early.

    The result is then that of the finished rounds; None if there are none. ParityError if a side does not do the same work as
    jaxformer. A side that is not installed, or fails, is skipped.
    """
    rounds, stopped, cost = Rounds(), False, {}
    before = limits.load()
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        try:
            cost = ask_once("prepare", item=key_of(item), folder=str(folder), options=plan.options)
            for peer in (peer for peer in item.peers if peer in plan.peers):
                begin(rounds, item, peer, folder, plan, ends)
            rotate(rounds, plan.rounds)
            finish(rounds)
        except KeyboardInterrupt:
            stopped = True
    kept = rounds.kept(plan.rounds)
    if not kept:
        return None, stopped
    sides = {
        peer: SideResult([seconds[i] / item.repeats for i in kept], rounds.figures.get(peer, {}))
        for peer, seconds in rounds.seconds.items()
    }
    paces = [pace for i, pace in enumerate(rounds.paces()) if i in kept]
    described = {**limits.described(), "load before": before, "load after": limits.load()}
    done = Result(
        *(item.group, item.name, item.summary, item.unit, cost["flops"], cost["bytes"]),
        *(peak, described, sides, rounds.skipped, paces, item.device, cost["tokens"]),
    )
    return done, stopped


def begin(rounds: Rounds, item: Item, peer: str, folder: Path, plan: Plan, ends: ExitStack) -> None:
    """Start a side, check it, and warm it up; nothing is timed before that."""
    if package := lacking(peer):
        rounds.skipped[peer] = f"{package} is not installed"
        return
    whole = item.group == "start"
    runner = WholeProcess(item, peer, folder, plan.options) if whole else InWorker(item, peer, folder, plan.validate)
    ends.callback(runner.close)
    try:
        found = runner.check()
        rounds.expected = rounds.expected or found or []
        if found is not None:
            rounds.figures[peer] = {"apart": check_same(item, peer, found, rounds.expected)}
        runner.warm_up()
    except WorkerError as error:
        rounds.leave_out(peer, error)
        return
    rounds.runners[peer], rounds.seconds[peer] = runner, []


def check_same(item: Item, peer: str, found: list[float], wanted: list[float]) -> float:
    """Return how far a side's loss, relative, or share of tokens is from jaxformer's, on the same weights and inputs.

    Raises ParityError if it is too far: the side does other work.
    """
    start = f"{key_of(item)}: {peer} does other work than jaxformer:"
    if isinstance(wanted[0], float):
        tolerance = LOSS_TOLERANCE[item.settings.get("precision", "float32")] if item.group != "start" else RUN_TOLERANCE
        if not math.isclose(found[0], wanted[0], rel_tol=tolerance):
            raise ParityError(f"{start} a loss of {found[0]:.7g}, jaxformer's is {wanted[0]:.7g}; nothing was timed")
        return abs(found[0] - wanted[0]) / abs(wanted[0])
    if found != wanted:
        pairs = enumerate(zip(found, wanted, strict=False))
        place = next((i for i, (a, b) in pairs if a != b), min(len(found), len(wanted)))
        raise ParityError(f"{start} of {len(wanted)} tokens, the one at place {place} differs; nothing was timed")
    return 0.0


def rotate(rounds: Rounds, n: int) -> None:
    """Time the sides in turn (A B C A B C), one at a time; rounds in which the machine was slow are repeated, at most once."""
    rounds.marks = [limits.pace()]
    for turn in range(2 * n):
        if turn >= n and len(rounds.quiet()) >= n:
            break
        for peer, runner in list(rounds.runners.items()):
            try:
                rounds.seconds[peer].append(runner.round())
            except WorkerError as error:
                rounds.leave_out(peer, error)
        rounds.marks.append(limits.pace())


def finish(rounds: Rounds) -> None:
    """Collect the figures of every side; skip a side whose loss is NaN or infinite, because it did not do the work."""
    for peer, runner in list(rounds.runners.items()):
        try:
            rounds.figures[peer] = rounds.figures.get(peer, {}) | runner.finish()
            if not math.isfinite(rounds.figures[peer].get("loss", 0.0)):
                raise WorkerError("its loss became NaN or infinite")
        except WorkerError as error:
            rounds.leave_out(peer, error)
