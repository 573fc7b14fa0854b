"""Training loop of a run, from its first step or last checkpoint to its end: evaluate, log, save, and stop when asked."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from rich.console import Console
from rich.progress import Progress, TextColumn

from jaxformer.errors import CheckpointError, JaxformerError, NonFiniteError, quoted, with_room
from jaxformer.parallel.group import count, exchange, from_first, is_first, timed
from jaxformer.parallel.mesh import current
from jaxformer.pytree import named_leaves
from jaxformer.runs.checkpoint import save_state
from jaxformer.runs.folder import RunFolder, kept_states
from jaxformer.runs.lock import check_held
from jaxformer.runs.metrics import Goal, Pace, clock, is_last
from jaxformer.runtime.jit import ahead
from jaxformer.runtime.refusals import refusal
from jaxformer.runtime.shutdown import Held, held
from jaxformer.training.diagnostics import (
    Examine,
    all_finite,
    check_finite,
    diagnosis,
    marks,
    remedy,
    said_of_divergence,
    said_of_skips,
)
from jaxformer.training.health import MOST_IN_A_ROW
from jaxformer.training.step import TrainState

CHECKPOINT = "the checkpoint of step"
PATIENCE = 30.0
"""Seconds that several processes have to end a step after one of them was asked to stop."""


class StoppedError(JaxformerError):
    """Raised when the run was asked to stop, after it saved itself."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Length of a run, and what is due on the way."""

    steps: int
    evaluate_every: int
    save_every: int
    tokens_per_step: int
    evaluate: Callable[[Any], Mapping[str, float]]
    """Function evaluate(model) -> measures by name."""
    on_evaluate: Callable[[Any, Mapping[str, float]], None]
    """Function on_evaluate(model, line), called after each evaluation, with the line that metrics.jsonl then gets."""
    examine: Examine | None = None
    """Function that describes a step whose loss or gradient is not finite."""
    goal: Goal | None = None
    later: tuple[Callable[[Any], Any], ...] = ()
    """Functions of the model whose first program is compiled while the first steps are taken; see `runtime.jit.ahead`."""
    is_followed: bool = False
    """True if the recipe computes more with the trained weights: a run stopped after its last line is then continued too."""

    def next_stop(self, step: int) -> int:
        """Return the next step at which something is due."""
        return min(self.steps, *((step // every + 1) * every for every in (self.evaluate_every, self.save_every)))

    def evaluates(self, step: int) -> bool:
        """True if the model is evaluated after that many steps."""
        return step == self.steps or step % self.evaluate_every == 0


def fit(
    state: TrainState,
    plan: Plan,
    run: RunFolder,
    train_steps: Callable[[TrainState, Array], tuple[TrainState, Any]],
    console: Console,
) -> TrainState:
    """Train to plan.steps, or to the plan's goal. `train_steps(state, n)` takes n steps and returns the state and the mean
    loss.

    A signal, or a standard output that fails, saves at the end of the running dispatch and raises StoppedError. A step whose
    loss or gradient is not finite is skipped and reported. Three in a row raise NonFiniteError, and so does a loss or weight
    that is not finite otherwise: such a state is never saved.
    """
    course = _Course(state, plan, run, console)
    try:
        _take_course(course, plan, train_steps)
    except NonFiniteError as error:
        first = float(course.health.first_loss) if course.health.taken else math.inf
        raise NonFiniteError(f"{error}; {from_first(lambda: remedy(run, first))}") from None
    except CheckpointError as error:
        said = f"{error}{with_room(error)}"
        if course.code:
            raise StoppedError(f"{course.why}stopped at step {course.step}, and not saved: {said}", course.code) from None
        raise CheckpointError(said) from None
    return course.state


def _take_course(course: "_Course", plan: Plan, train_steps: Callable[[TrainState, Array], tuple[TrainState, Any]]) -> None:
    """Run the steps, and what is due between them."""
    with held(course.rescue) as stop, ThreadPoolExecutor(1) as beside, _progress(course.console) as progress:
        saves = _Saves(course.run, stop.gate, beside)
        task = progress.add_task("", total=plan.steps, completed=course.step, loss=math.nan, speed=0.0, left="")
        later = [*plan.later]
        done = course.begin()
        course.code, course.why = asked(stop)
        while not (done or course.code):
            due = plan.next_stop(course.step)
            n = from_first(lambda due=due: min(course.pace.size, due - course.step))
            with timed("step", course.step + 1):
                course.took(n, *train_steps(course.state, jnp.int32(n)))
            while later:
                ahead(later.pop(), course.state.model)
            progress.update(task, completed=course.step, **course.shown())
            course.code, course.why = asked(stop)
            if course.code or course.step == due:
                check_finite(course.step, named_leaves(all_finite(course.state)))
            if plan.evaluates(course.step) and not course.code:
                done = course.evaluate()
                course.code, course.why = asked(stop)
            if course.code or done or course.is_to_save():
                with timed(CHECKPOINT, course.step):
                    saves.save(course.step, course.state)
                course.pace.restart()
        saves.wait()
        if course.code:
            raise StoppedError(course.why + course.stopped(course.step), course.code)


def asked(stop: Held) -> tuple[int, str]:
    """Return the exit code and the reason if this process or another one has to stop; (0, "") otherwise.

    All processes stop after the same step. The reason is "" if a signal handler has given it already, or if nobody reads.
    """
    own = [(128 + number, "") for number in stop.received]
    for fault in stop.faults:
        said, code = refusal(fault) or ("", 2)
        own.append((code, f"{said}; " if said else ""))
    return next(((code, why) for each in exchange(own[:1]) for code, why in each), (0, ""))


class _Saves:
    """Checkpoints, written by a thread during the next steps, one at a time."""

    def __init__(self, run: RunFolder, gate: threading.Lock, beside: ThreadPoolExecutor):
        self.run, self.gate, self.beside = run, gate, beside
        self.last: Future[None] | None = None

    def save(self, step: int, state: TrainState) -> None:
        """Copy the state to the host and have it written; CheckpointError if the previous one could not be written.

        An existing checkpoint of the step is kept: replacing it would remove it for an instant. On a mesh, each device's part
        is written in place, before the next step.
        """
        self.wait()
        if from_first(lambda: step in kept_states(self.run.checkpoints)):
            return
        if current() is None:
            self.last = self.beside.submit(self._write, step, jax.tree.map(np.array, state))
        else:
            self._write(step, state)

    def wait(self) -> None:
        """Wait until all is written; CheckpointError if it could not be."""
        if self.last is not None:
            self.last.result()

    def _write(self, step: int, state: TrainState) -> None:
        with self.gate:
            save_state(self.run.checkpoints, step, state)


class _Course:
    """Progress of a run, and its messages."""

    def __init__(self, state: TrainState, plan: Plan, run: RunFolder, console: Console):
        self.state, self.plan, self.run, self.console = state, plan, run, console
        self.mesh = current()
        self.step, self.pace, self.loss = int(state.step), Pace(), math.nan
        self.health = self.evaluated = jax.device_get(state.health)
        self.total, self.applied, self.asked = 0.0, 0, 0.0
        self.code, self.why = 0, ""

    def begin(self) -> bool:
        """Save a new run, or make up for a missed evaluation; True if the run is at its end already.

        A new run is saved at once, so that an obstacle to saving is known before it has cost anything.
        """
        if self.step == 0:
            if from_first(lambda: not kept_states(self.run.checkpoints)):
                with timed(CHECKPOINT, 0):
                    save_state(self.run.checkpoints, 0, self.state)
        elif self.plan.evaluates(self.step) and from_first(lambda: self.run.line_of(self.step)) is None:
            return self.evaluate()
        return self._has_ended(self.step)

    def _has_ended(self, step: int) -> bool:
        """True if the line of that step is the last one of the run."""
        line = from_first(lambda: self.run.line_of(step))
        return line is not None and is_last(line, self.plan.steps, self.plan.goal)

    def took(self, n: int, state: TrainState, loss: Any) -> None:
        """Record n steps that were taken or skipped."""
        self.state, before = state, self.health
        step, loss, self.health = jax.device_get((state.step, loss, state.health))
        self.step, applied = int(step), n - int(self.health.skipped - before.skipped)
        if said := said_of_skips(before, self.health):
            self.console.print(said)
        if self.health.in_a_row >= MOST_IN_A_ROW:
            raise NonFiniteError(diagnosis(self.step, state.model, self.plan.examine))
        if applied > 0:
            self.loss = float(loss)
            check_finite(self.step, {"loss": self.loss})
            self.total, self.applied = self.total + self.loss * applied, self.applied + applied
        self.pace.count(n)

    def is_to_save(self) -> bool:
        """True if a checkpoint is due and the last step was not skipped: after that the weights may be ruined already."""
        return self.step % self.plan.save_every == 0 and not self.health.in_a_row

    def shown(self) -> dict[str, Any]:
        """Return the fields of the progress line."""
        return {"loss": self.loss, "speed": self._speed(), "left": clock(self._left())}

    def evaluate(self) -> bool:
        """Evaluate, log a line, and warn of divergence; True if the line is the last one.

        What belongs to the line is written before it: a step whose line exists is complete.
        """
        loss = self.total / self.applied if self.applied else float(self.health.mean_loss)
        line = {"step": self.step, "loss": loss, "tokens_per_second": self._speed(), "seconds_left": self._left()}
        line |= marks(self.evaluated, self.health)
        with timed("the evaluation of step", self.step):
            line |= self.plan.evaluate(self.state.model)
            check_finite(self.step, line)
            check_held(self.run.path)
            self.plan.on_evaluate(self.state.model, line)
            if is_first():
                self.run.log(line)
        if self.health.taken and (said := said_of_divergence(loss, float(self.health.first_loss))):
            self.console.print(said)
        self.evaluated, self.total, self.applied = self.health, 0.0, 0
        self.pace.restart()
        return is_last(line, self.plan.steps, self.plan.goal)

    def rescue(self) -> str:
        """Save the newest state from another thread, where nothing may be compiled; RuntimeError while steps consume it.

        With several processes no part of a state is saved: all reach the end of a step together, or stop without saving.
        """
        if count() > 1:
            self.asked = self.asked or time.monotonic()
            if time.monotonic() - self.asked < PATIENCE:
                raise RuntimeError("the others are waited for")
            return f"stopped after step {self.step}, and not saved: no step ended for {PATIENCE:.0f} s"
        copied = jax.tree.map(np.array, state := self.state)
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            raise RuntimeError("used up meanwhile")
        step = int(copied.step)
        if step not in kept_states(self.run.checkpoints):
            if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(copied)):
                return f"stopped at step {step}, and not saved: its weights are not finite"
            try:
                with nullcontext() if self.mesh is None else jax.set_mesh(self.mesh):
                    save_state(self.run.checkpoints, step, copied)
            except CheckpointError as error:
                return f"stopped at step {step}, and not saved: {error}"
        return self.stopped(step)

    def stopped(self, step: int) -> str:
        """Return the message of a run that was asked to stop, after it was saved."""
        if self._has_ended(step) and not self.plan.is_followed:
            return f"stopped at step {step}, the last one; it is trained and saved in {self.run.path}"
        return f"stopped at step {step}, saved; continue with --resume --out {quoted(self.run.path)}"

    def _speed(self) -> float:
        return self.plan.tokens_per_step / self.pace.seconds

    def _left(self) -> float:
        return 0.0 if math.isinf(self.pace.seconds) else self.pace.seconds * (self.plan.steps - self.step)


def _progress(console: Console) -> Progress:
    text = "step {task.completed:,.0f} of {task.total:,.0f}  loss {task.fields[loss]:.3f}"
    text += "  {task.fields[speed]:,.0f} tokens/s  {task.fields[left]} left"
    return Progress(TextColumn(text), console=console, transient=True, disable=not console.is_terminal)
