"""A run from its first step, or its last checkpoint, to its end: evaluate, log, save, and stop when asked."""

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree
from rich.console import Console
from rich.progress import Progress, TextColumn

from jaxformer.errors import JaxformerError, NonFiniteError
from jaxformer.pytree import named_leaves
from jaxformer.training.checkpoint import save_state
from jaxformer.training.runs import RunFolder
from jaxformer.training.step import TrainState

SECONDS_A_DISPATCH = 1.0
"""Between two dispatches a run shows its progress, and stops if it was asked to."""


class StoppedError(JaxformerError):
    """The run was asked to stop and saved itself first."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long a run goes, and what it does on the way."""

    steps: int
    evaluate_every: int
    save_every: int
    tokens_per_step: int
    evaluate: Callable[[Any], Mapping[str, float]]
    """evaluate(model) -> measures by name."""
    on_evaluate: Callable[[Any, Mapping[str, float]], None]
    """on_evaluate(model, line) is called after each evaluation, with the line that metrics.jsonl got."""
    goal: tuple[str, float] | None = None
    """A measure of the evaluation, and the value at which the run stops."""

    def reached(self, line: Mapping[str, float | int]) -> bool:
        """Whether the goal is met."""
        return self.goal is not None and line[self.goal[0]] >= self.goal[1]

    def next_stop(self, step: int) -> int:
        """The next step at which something is due."""
        return min(self.steps, *((step // every + 1) * every for every in (self.evaluate_every, self.save_every)))


def fit(
    state: TrainState,
    plan: Plan,
    run: RunFolder,
    train_steps: Callable[[TrainState, Array], tuple[TrainState, Any]],
    console: Console,
) -> TrainState:
    """Train to plan.steps, or to its goal. `train_steps(state, n)` takes n steps and returns the state and the mean loss.

    SIGINT and SIGTERM save at the end of the dispatch that is running and raise StoppedError. NaN or infinity in the loss or in
    the weights raises NonFiniteError, and such a state is never saved.
    """
    step, pace, size = int(state.step), _Pace(), 1
    since, total, done = step, 0.0, step >= plan.steps
    with _signals() as received, _progress(console) as progress:
        task = progress.add_task("", total=plan.steps, completed=step, loss=math.nan, speed=0.0, left="")
        while not done:
            stop = plan.next_stop(step)
            n = min(size, stop - step)
            state, loss = train_steps(state, jnp.int32(n))
            loss = float(loss)
            step, total = step + n, total + loss * n
            check_finite(step, {"loss": loss})
            if received or step == stop:
                check_finite(step, named_leaves(all_finite(state)))
            size = pace.count(n)
            speed, left = plan.tokens_per_step / pace.seconds, pace.seconds * (plan.steps - step)
            progress.update(task, completed=step, loss=loss, speed=speed, left=clock(left))
            done = step == plan.steps
            if done or step % plan.evaluate_every == 0:
                line = {"step": step, "loss": total / (step - since), "tokens_per_second": speed, "seconds_left": left}
                since, total, done = step, 0.0, _evaluated(state.model, plan, run, line) or done
                pace.restart()
            if received or done or step % plan.save_every == 0:
                save_state(run.checkpoints, step, state)
                pace.restart()
            if received and not done:
                raise StoppedError(f"stopped at step {step}, saved; continue with --resume --out {run.path}", received[0])
    return state


def _evaluated(model: Any, plan: Plan, run: RunFolder, line: dict[str, Any]) -> bool:
    """Evaluate, and log the line with the measures; whether the goal is met."""
    line |= plan.evaluate(model)
    check_finite(line["step"], line)
    run.log(line)
    plan.on_evaluate(model, line)
    return plan.reached(line)


@jax.jit
def all_finite(state: TrainState) -> PyTree:
    """Leaf for leaf, 0 where all is finite, else NaN."""
    return jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf).all(), 0.0, jnp.nan), state)


def check_finite(step: int, numbers: Mapping[str, Any]) -> None:
    """NonFiniteError names the first number that is NaN or infinite."""
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise NonFiniteError(f"{name} is {float(number)} at step {step}; lower the learning rate, or resume from before")


class _Pace:
    """Seconds a step, and how many steps fit one dispatch."""

    def __init__(self) -> None:
        self.seconds = math.inf
        self.restart()

    def restart(self) -> None:
        """Time what follows alone."""
        self.start = time.perf_counter()

    def count(self, n: int) -> int:
        """n steps were taken; the size of the next dispatch. The first dispatch includes the compilation."""
        now = time.perf_counter()
        self.seconds = min(self.seconds, (now - self.start) / n) if n == 1 else (now - self.start) / n
        self.start = now
        return max(1, min(2 * n, round(SECONDS_A_DISPATCH / self.seconds)))


def clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _progress(console: Console) -> Progress:
    text = "step {task.completed:,.0f} of {task.total:,.0f}  loss {task.fields[loss]:.3f}"
    text += "  {task.fields[speed]:,.0f} tokens/s  {task.fields[left]} left"
    return Progress(TextColumn(text), console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals received, as they come; a second one is not held back."""
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        received.append(number)
        for which in before:
            signal.signal(which, before[which])

    before = {which: signal.signal(which, note) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)
