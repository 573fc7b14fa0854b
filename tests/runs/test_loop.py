"""The loop around the steps: when it stops to look up, and what it refuses to go on with."""

import errno
import math
import os
import signal
import time
from dataclasses import replace

import jax.numpy as jnp
import pytest
from rich.console import Console

from jaxformer.errors import CheckpointError, NonFiniteError
from jaxformer.runs.folder import RunFolder
from jaxformer.runs.lock import only_writer
from jaxformer.runs.metrics import clock
from jaxformer.training.loop import Plan, StoppedError, fit
from jaxformer.training.step import TrainState

PLAN = Plan(
    steps=10,
    evaluate_every=4,
    save_every=3,
    tokens_per_step=1,
    evaluate=lambda model: {"val_loss": 1.0},
    on_evaluate=lambda model, line: None,
)


@pytest.fixture
def run(tmp_path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {})


def loop(
    run: RunFolder, *, weight=lambda step: 1.0, loss=1.0, val_loss=1.0, during=lambda step: None, evaluating=lambda step: None
) -> list:
    """Steps of nothing; the steps at which `on_evaluate` was called."""
    evaluated = []

    def steps(state: TrainState, n) -> tuple[TrainState, float]:
        step = int(state.step) + int(n)
        during(step)
        return TrainState(jnp.int32(step), {"w": jnp.full(2, weight(step))}, ()), loss

    def on_evaluate(model, line) -> None:
        evaluated.append(line["step"])
        evaluating(line["step"])

    fit(
        TrainState(jnp.int32(0), {"w": jnp.ones(2)}, ()),
        replace(
            PLAN,
            evaluate=lambda model: {"val_loss": val_loss},
            on_evaluate=on_evaluate,
        ),
        run,
        steps,
        Console(quiet=True),
    )
    return evaluated


def saved(run: RunFolder) -> list[int]:
    return sorted(int(path.name) for path in run.checkpoints.glob("*"))


def test_every_due_step_is_met_and_the_last_one_is_due(run):
    stops, step = [], 0
    while step < PLAN.steps:
        step = PLAN.next_stop(step)
        stops.append(step)
    assert stops == [3, 4, 6, 8, 9, 10]
    assert loop(run) == [4, 8, 10]
    assert [line["step"] for line in run.metrics] == [4, 8, 10]
    assert saved(run) == [9, 10]


@pytest.mark.parametrize(
    ("wrong", "said", "kept"),
    [
        ({"weight": lambda step: math.nan if step > 3 else 1.0}, "model.w is nan at step 4", [0, 3]),
        ({"weight": lambda step: math.inf}, "model.w is nan at step 3", [0]),
        ({"loss": math.nan}, "loss is nan at step 1", [0]),
        ({"loss": math.inf}, "loss is inf at step 1", [0]),
        ({"val_loss": math.nan}, "val_loss is nan at step 4", [0, 3]),
    ],
)
def test_what_is_no_number_is_never_saved(run, wrong, said, kept):
    with pytest.raises(NonFiniteError) as caught:
        loop(run, **wrong)
    assert str(caught.value) == f"{said}; go on with --resume 0 --out {run.path} and a lower --optimizer.learning-rate"
    assert saved(run) == kept
    assert run.metrics == []


def test_a_second_signal_is_not_held_back(run):
    """The first one asks; the next one, while the step still runs, ends it at once."""

    def twice(step: int) -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)  # two at one instant are one

    with pytest.raises(KeyboardInterrupt):
        loop(run, during=twice)
    assert saved(run) == [0]


def test_a_signal_in_the_last_step_leaves_a_run_to_go_on_with(run):
    with pytest.raises(StoppedError, match=r"^stopped at step 10, saved; continue with --resume"):
        loop(run, during=lambda step: step == 10 and os.kill(os.getpid(), signal.SIGTERM))
    assert saved(run) == [9, 10]
    assert run.line_of(10) is None


def test_a_signal_behind_the_last_evaluation_leaves_a_finished_run(run):
    with pytest.raises(StoppedError, match=r"^stopped at step 10, the last one; it is trained and saved in"):
        loop(run, evaluating=lambda step: step == 10 and os.kill(os.getpid(), signal.SIGTERM))
    assert saved(run) == [9, 10]


def test_a_line_comes_after_what_belongs_to_it(run):
    """So a step that has its line has its weights too."""
    with pytest.raises(ZeroDivisionError):
        loop(run, evaluating=lambda step: 1 / 0)
    assert run.metrics == []


def test_a_signal_saves_at_a_step_that_was_not_due(run):
    with pytest.raises(StoppedError, match="stopped at step 1, saved"):
        loop(run, during=lambda step: os.kill(os.getpid(), signal.SIGTERM))
    assert saved(run) == [0, 1]


@pytest.mark.slow
def test_a_signal_to_a_run_that_cannot_be_saved_is_answered_all_the_same(run):
    """As where its folder was moved."""

    def moved(step: int) -> None:
        if step == 1:
            run.path.rename(run.path.with_name("moved"))
            os.kill(os.getpid(), signal.SIGTERM)

    said = rf"^stopped at step 1, and not saved: {run.path} was moved or removed while it was written; nothing more is written"
    with only_writer(run.path), pytest.raises(StoppedError, match=said) as stop:
        loop(run, during=moved)
    assert stop.value.exit_code == 143
    assert saved(RunFolder(run.path.with_name("moved"))) == [0]


def test_clock():
    assert [clock(seconds) for seconds in (0.0, 9.6, 61.0, 3599.6, 3723.0)] == ["0:00", "0:10", "1:01", "1:00:00", "1:02:03"]


def test_a_checkpoint_is_never_replaced(run):
    """It would be gone for an instant, in which the process may be killed."""
    times = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            loop(run, during=lambda step: 1 / 0)
        times.append({path: path.stat().st_mtime_ns for path in (run.checkpoints / "0").rglob("*")})
    assert times[0] == times[1] != {}


@pytest.mark.slow
def test_a_disk_that_gets_full_says_when_the_run_goes_on(run, monkeypatch):
    def full(folder, size: int) -> None:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: it takes {size} bytes, and 1 are free")

    monkeypatch.setattr("jaxformer.runs.checkpoint.check_room", full)
    said = r"/0 cannot be written: No space left on device: it takes \d+ bytes, and 1 are free; --resume goes on once there is"
    with pytest.raises(CheckpointError, match=said):
        loop(run)
