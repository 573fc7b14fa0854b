"""Scalars for TensorBoard: those of metrics.jsonl and of watch.jsonl, read back as TensorBoard reads them."""

import errno
import struct
import sys
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import jaxformer.recipes.shakespeare as shakespeare
from jaxformer.errors import InputError, MissingPackageError
from jaxformer.recipes.prepare import read_recipe, start_run
from jaxformer.runs.averaging import write_weights
from jaxformer.runs.folder import RunFolder
from jaxformer.runs.tensorboard import ShownRun
from jaxformer.runs.watched import Monitor
from jaxformer.training.loop import Plan, fit
from jaxformer.training.step import TrainState

pytest.importorskip("tensorboardX")


def scalars(folder: Path) -> dict[int, dict[str, float]]:
    """Values by step: files in the order of their names, and at a session's start all from its step on is void."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found: dict[int, dict[str, float]] = {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + size])
            data = data[16 + size :]
            if event.session_log.status == SessionLog.START:
                found = {step: values for step, values in found.items() if step < event.step}
            for value in event.summary.value:
                found.setdefault(event.step, {})[value.tag] = value.simple_value
    return found


def logged(out: Path) -> dict[int, dict[str, float]]:
    """The lines of metrics.jsonl by step, as float32."""
    return {
        int(line["step"]): {name: float(np.float32(value)) for name, value in line.items() if name != "step"}
        for line in RunFolder.open(out).metrics
    }


def trained(arguments: list[str], out: Path) -> None:
    """Steps of nothing, by the flags of a recipe."""
    recipe = read_recipe(shakespeare.PRESETS, ["--out", str(out), *arguments], prog="train")
    folder, state = start_run(recipe, {}, TrainState(jnp.int32(0), {"norm": {"scale": jnp.ones(2)}}, ()))
    plan = Plan(
        steps=recipe.steps,
        evaluate_every=recipe.evaluate_every,
        save_every=recipe.save_every,
        tokens_per_step=1,
        evaluate=lambda model: {"val_loss": 0.1 + len(arguments)},
        on_evaluate=lambda model, line: write_weights(folder, folder.weights, model),
    )

    def steps(state: TrainState, n) -> tuple[TrainState, float]:
        return replace(state, step=state.step + n), 1.0

    fit(state, plan, folder, steps, Console(quiet=True))


def test_a_run_gives_tensorboard_the_lines_of_its_metrics_and_a_resumed_one_goes_on(tmp_path):
    trained(["--tensorboard", "--steps", "6", "--evaluate-every", "3", "--save-every", "3"], tmp_path)
    with pytest.warns(UserWarning, match="step 6 is set aside: the run goes on from step 3"):
        trained(["--resume", "3", "--evaluate-every", "4", "--steps", "8"], tmp_path)
    found = scalars(tmp_path / "tensorboard" / "metrics")
    assert [*found] == [3, 4, 8], "the line of step 6 is of steps that were taken again"
    assert found == logged(tmp_path)


def test_a_run_without_tensorboardx_is_refused_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingPackageError, match=r"^tensorboardX is not installed; pip install 'jaxformer\[tensorboard\]'$"):
        trained(["--tensorboard"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_that_cannot_be_written_ends_the_scalars_alone(tmp_path, monkeypatch):
    run = ShownRun.of(RunFolder.create(tmp_path, {}), 0)
    run.log({"step": 1, "loss": 1.0})

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run.events.records, "flush", full)
    with pytest.warns(
        UserWarning, match=r"metrics cannot be written: No space left on device; TensorBoard is not given the rest"
    ):
        run.log({"step": 2, "loss": 0.5})
    run.log({"step": 3, "loss": 0.25})
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    assert 3 not in scalars(tmp_path / "tensorboard" / "metrics")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    run = RunFolder.create(tmp_path, {})
    (tmp_path / "tensorboard").touch()
    with pytest.raises(InputError, match=r"tensorboard cannot be written: .*; remove it, or leave out --tensorboard$"):
        ShownRun.of(run, 0)


def test_a_watched_run_gives_its_rows(tmp_path):
    monitor = Monitor.begin(tmp_path, 2, 0, say=pytest.fail)
    monitor.write(1, {"loss": 1.5, "gradient/a": 0.25})
    assert scalars(tmp_path / "tensorboard" / "watch") == {1: {"loss": 1.5, "gradient/a": 0.25, "left its band": 0}}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of its own packages
def test_tensorboard_itself_reads_the_scalars(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for taken, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        run = ShownRun.of(RunFolder(tmp_path), taken)
        for step in steps:
            run.events.write(step, {"loss": step + 0.25 * taken})
    found = reading.EventAccumulator(str(run.events.folder)).Reload()
    assert [(each.step, each.value) for each in found.Scalars("loss")] == [(1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5)]
