"""The short form of `python -m tests.faults`, and the control of each promise, in which what keeps it is taken away."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from jaxformer.config.models import GPTConfig
from jaxformer.convert import state_files
from jaxformer.runs import checkpoint
from jaxformer.runs.manifest import Manifest
from tests.faults import files, generated, kills, processes
from tests.faults.disks import full_disks
from tests.faults.processes import TOY, Start, forked_toy, toy
from tests.runs.test_lock import HOLD

pytestmark = pytest.mark.usefixtures("little_to_collect")
ORBAX_IS_LOUD = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@ORBAX_IS_LOUD
def test_flips(tmp_path):
    assert files.flips(12, tmp_path) == []


@pytest.mark.slow
@ORBAX_IS_LOUD
def test_without_manifest_and_digest_flips_are_silent(tmp_path, monkeypatch):
    monkeypatch.setattr(Manifest, "check", lambda *_: None)
    monkeypatch.setattr(checkpoint, "digest", lambda state: "")
    assert files.flips(24, tmp_path)


@pytest.mark.slow
@ORBAX_IS_LOUD
def test_cuts(tmp_path):
    assert files.cuts(12, tmp_path) == []


@ORBAX_IS_LOUD
@pytest.mark.slow
def test_a_cut_that_nobody_is_warned_of_is_silent(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxformer.runs.metrics.warnings", SimpleNamespace(warn=lambda *_, **__: None))
    assert files.cuts(36, tmp_path)


@ORBAX_IS_LOUD
def test_swaps(tmp_path):
    assert files.swaps(8, tmp_path) == []


@ORBAX_IS_LOUD
@pytest.mark.slow
def test_a_checkpoint_that_does_not_say_what_it_is_of_is_swapped_in_silence(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "check_belongs", lambda *_: None)
    assert "states/checkpoints/7 is another run's" in files.swaps(27, tmp_path)


def test_pickles(tmp_path):
    assert files.pickles(30, tmp_path) == []


def test_a_plain_pickle_is_executed(tmp_path, monkeypatch):
    def unsafe(path: Path) -> dict:
        torch.load(path, weights_only=False)
        return {}

    monkeypatch.setattr(state_files, "_unpickled", unsafe)
    assert "was executed" in files.pickles(30, tmp_path)[-1]


def test_bombs(tmp_path):
    assert files.bombs(6, tmp_path) == []


@pytest.mark.slow
def test_a_bomb_that_is_read_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "read_text", Path.read_bytes)
    assert any("was read" in wrong for wrong in files.bombs(5, tmp_path))


@pytest.mark.slow
def test_a_tokenizer_that_is_not_checked_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxformer.data.tokenizers.check_backend", lambda backend: None)
    assert ["tokenizer0.json: was read" in wrong for wrong in files.bombs(6, tmp_path)] == [True]


@pytest.mark.slow
def test_generated_configurations():
    assert generated.configs(40, Path()) == []


@pytest.mark.slow
def test_an_unchecked_configuration_is_foreign(monkeypatch):
    monkeypatch.setattr(GPTConfig, "__post_init__", lambda self: None)
    assert generated.configs(40, Path())


@pytest.mark.usefixtures("untyped")
def test_generated_inputs():
    assert generated.inputs(25, Path()) == []


@pytest.mark.usefixtures("untyped")
def test_unchecked_inputs_are_foreign(monkeypatch):
    monkeypatch.setattr("jaxformer.models.gpt.check_ids", lambda ids, *_: ids)
    assert generated.inputs(25, Path())


def test_two_writers(tmp_path):
    assert processes.writers(2, tmp_path) == []


def test_without_the_lock_both_write(tmp_path):
    unlocked = HOLD.replace("import sys\n", "import sys, fcntl\nfcntl.flock = lambda *_: None\n")
    assert unlocked != HOLD
    assert len(processes.writers(2, tmp_path, unlocked)) == 2


SAVED_ALREADY = "if kept_states(run.checkpoints):"
FORKED = partial(forked_toy, save_every=3)
LOADED = "state = checkpoint.load_state(run.checkpoints, state)"


def changed(line: str, by: str) -> Start:
    """The toy with another line."""
    assert TOY.count(line) == 1
    return partial(toy, code=TOY.replace(line, by))


def test_kills(tmp_path):
    assert kills.in_saves(1, tmp_path, FORKED) == []


@pytest.mark.slow
def test_without_the_moments_a_killed_run_has_other_bits(tmp_path):
    forgetful = changed(LOADED, f"{LOADED}; state = type(state)(state.step, state.model, optimizer.init(state.model))")
    assert "not (" in kills.in_saves(1, tmp_path, forgetful)[-1]


@pytest.mark.slow
def test_a_run_that_takes_a_configuration_for_a_checkpoint_does_not_go_on(tmp_path):
    hasty = changed(SAVED_ALREADY, 'if (out / "config.json").exists():')
    assert "holds no checkpoint" in kills.first_saves(1, tmp_path, hasty, longest=0)[0]


@pytest.mark.slow
def test_a_first_save(tmp_path):
    assert kills.first_saves(1, tmp_path, FORKED, longest=0) == []


@contextmanager
def where_disks_can_be_mounted() -> Iterator[None]:
    """Skips the test elsewhere."""
    try:
        yield
    except PermissionError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_a_disk_that_gets_full(tmp_path):
    with where_disks_can_be_mounted():
        assert full_disks(1, tmp_path, toy) == []


@pytest.mark.slow
def test_a_run_that_leaves_errors_to_python_is_noticed(tmp_path):
    with where_disks_can_be_mounted():
        assert "it ends with 1" in full_disks(1, tmp_path, changed("\nrun(main)", "\nmain(sys.argv[1:])"))[0]


@pytest.mark.slow
def test_signals(tmp_path):
    assert processes.toy_signals(2, tmp_path) == []


@pytest.mark.slow
def test_a_process_that_ignores_signals_is_noticed(tmp_path):
    deaf = "import signal, time\nfor each in (2, 15): signal.signal(each, signal.SIG_IGN)\ntime.sleep(30)"
    assert len(processes.signals(1, tmp_path, partial(toy, code=deaf), longest=3, patience=1)) == 1
