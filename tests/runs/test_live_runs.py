"""What somebody does to the files of a run while it is written."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from jaxformer.cli import runs as command
from jaxformer.cli.main import dispatch
from jaxformer.errors import CheckpointError
from jaxformer.runs import checkpoint
from jaxformer.runs.checkpoint import save_state, verdict
from jaxformer.runs.folder import RUN, RunFolder, kept_states
from jaxformer.runs.lock import only_writer

STATE = {"w": np.zeros(3, np.float32)}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {RUN: "abc"})


@pytest.mark.first(1)
@pytest.mark.parametrize("is_held", [True, False])
def test_a_run_stays_the_same_one_without_its_settings(run, is_held):
    config, aside = run.path / "config.json", run.path.parent / "aside"
    with only_writer(run.path if is_held else run.path.parent / "other"):
        save_state(run.checkpoints, 1, STATE)
        config.rename(aside)
        save_state(run.checkpoints, 2, STATE)
    aside.rename(config)
    assert verdict(run.checkpoints, 1) == "whole"
    assert (verdict(run.checkpoints, 2) == "whole") == is_held  # not held is the control


def test_a_checkpoint_that_a_live_run_removes_is_not_damaged(run, monkeypatch, capsys):
    save_state(run.checkpoints, 1, STATE)
    save_state(run.checkpoints, 2, STATE)
    asked: list[int] = []

    def leaving(folder, step):
        asked.append(step)
        if asked == [1, 1]:
            shutil.rmtree(folder / "1")
        return "damaged: it leaves" if step == 1 else verdict(folder, step)

    monkeypatch.setattr("jaxformer.runs.checkpoint.verdict", leaving)
    monkeypatch.setattr(command, "LEAVING", 0.0)
    assert dispatch(["runs", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert (asked, "step         1" in said, "step         2" in said) == ([1, 1, 2], False, True)


def test_lines_that_are_taken_away_stay_missed(run):
    metrics = run.path / "metrics.jsonl"
    run.log({"step": 1, "loss": 1.0})
    metrics.write_bytes(b"")
    run.log({"step": 2, "loss": 0.5})
    with pytest.warns(match="is cut: it has"):
        assert [line["step"] for line in run.metrics] == [2]


def test_a_run_that_is_evaluated_more_often_from_some_step_on_has_lost_no_line(run, capsys):
    config = run.config | {"recipe": {"evaluate_every": 1000}}
    run.write_config(config)
    save_state(run.checkpoints, 16, STATE)  # it was stopped here, and resumed with another flag
    run.write_config(config | {"recipe": {"evaluate_every": 5}})
    save_state(run.checkpoints, 17, STATE)
    assert dispatch(["runs", str(run.path)]) == 0
    for step in (20, 25):
        run.log({"step": step, "loss": 1.0})
    save_state(run.checkpoints, 25, STATE)
    assert dispatch(["runs", str(run.path)]) == 0
    run.forget_after(20)
    assert dispatch(["runs", str(run.path)]) == 0, "a line of the step itself is made up for"
    run.forget_after(17)
    assert dispatch(["runs", str(run.path)]) == 1
    assert "metrics.jsonl ends at step 0, and there is a checkpoint of step 25: lines are lost" in capsys.readouterr().out


def test_what_is_somebodys_own_stays(run):
    ours, theirs = (
        ("weights.safetensors.0123abcd.unfinished", "checkpoints/tmp0123abcd"),
        ("notes.unfinished", "checkpoints/tmp-mine"),
    )
    for name in ours + theirs:
        (run.path / name).mkdir(parents=True)
    run.remove_leftovers()
    assert [name for name in ours + theirs if (run.path / name).exists()] == [*theirs]


@pytest.mark.slow
@pytest.mark.parametrize("is_held", [True, False])
def test_a_folder_that_takes_the_name_is_not_written(run, monkeypatch, is_held):
    aside = run.path.parent / "aside"

    def moved_here(folder, was=checkpoint.n_bytes):
        run.path.rename(aside)
        run.path.mkdir()
        run.checkpoints.mkdir()
        return was(folder)

    if not is_held:  # the control
        monkeypatch.setattr(checkpoint, "own_path", lambda folder: folder)
    with only_writer(run.path):
        monkeypatch.setattr(checkpoint, "n_bytes", moved_here)
        with pytest.raises(CheckpointError, match="was moved or removed while it was written"):
            save_state(run.checkpoints, 1, STATE)
    assert kept_states(run.checkpoints) == ([] if is_held else [1])


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json"])
def test_a_run_that_may_not_be_read_hides_no_other(run, name, monkeypatch, capsys):
    bad = RunFolder.create(run.path.parent / "bad", {RUN: "def"})
    for each in (run, bad):
        each.log({"step": 1, "loss": 1.0})

    def refused(file, method):
        if file == bad.path / name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return method(file)

    for method in (Path.is_file, Path.read_bytes):
        monkeypatch.setattr(Path, method.__name__, lambda file, method=method: refused(file, method))
    assert dispatch(["runs", str(run.path.parent)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{bad.path}: not checked: {bad.path / name} cannot be read: Permission denied"
    assert second == f"{run.path}: files whole"
