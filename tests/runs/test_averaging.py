"""Weights of a run's newest evaluations, and their mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.errors import CheckpointError
from jaxformer.models import abstract
from jaxformer.pytree import named_leaves
from jaxformer.runs.averaging import average_weights, best_step, keep_weights, kept_steps
from jaxformer.runs.folder import RunFolder
from tests.tiny import tiny_config

MODEL = abstract(tiny_config())


def filled(value):
    return jax.tree.map(lambda leaf: jnp.full(leaf.shape, value, leaf.dtype), MODEL)


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", {})


def test_the_newest_stay(run):
    for step in (2, 4, 6, 10):
        keep_weights(run, step, filled(step), newest=3)
    assert kept_steps(run) == [4, 6, 10]


def test_the_best_stays_and_is_the_best_of_those_that_are_left(run):
    for step, loss in ((2, 1.5), (4, 2.0), (6, 1.0), (8, 1.2), (10, 1.0), (12, 3.0)):
        run.log({"step": step, "val_loss": loss})
        keep_weights(run, step, filled(step), newest=2)
    assert (kept_steps(run), best_step(run)) == ([10, 12], (10, 1.0))
    run.log({"step": 14, "val_loss": 4.0})
    keep_weights(run, 14, filled(14), newest=2)
    assert kept_steps(run) == [10, 12, 14]
    run.forget_after(9)
    keep_weights(run, 9, filled(9), newest=2)
    assert (kept_steps(run), best_step(run)) == ([9], (-1, float("inf")))


def test_weights_that_the_run_did_not_write_are_none_of_its_own(run):
    for step in (2, 4):
        keep_weights(run, step, filled(step), newest=3)
    (run.evaluated / "3.safetensors").write_bytes((run.evaluated / "4.safetensors").read_bytes())
    assert kept_steps(run) == [2, 4]


def test_a_file_of_another_spelling_is_no_step(run):
    keep_weights(run, 2, filled(2), newest=3)
    (run.evaluated / "\u0662\u0660.safetensors").touch()
    (run.path / "manifest.json").unlink()  # which would not name it
    assert kept_steps(run) == [2]


def test_steps_that_are_taken_again_are_forgotten(run):
    for step in (2, 4, 6):
        keep_weights(run, step, filled(step), newest=3)
    keep_weights(run, 4, filled(1), newest=3)
    assert kept_steps(run) == [2, 4]
    assert {float(leaf.max()) for leaf in named_leaves(average_weights(run, MODEL, newest=5)).values()} == {1.5}


def test_the_mean(run):
    for step, value in ((1, 1.0), (2, 5.0), (3, 6.0)):
        keep_weights(run, step, filled(value), newest=5)
    for leaf in named_leaves(average_weights(run, MODEL, newest=5)).values():
        np.testing.assert_array_equal(leaf, np.full(leaf.shape, 4.0, np.float32))


def test_nothing_to_average(run):
    with pytest.raises(CheckpointError, match=r"holds no weights to average; go on with a larger --steps$"):
        average_weights(run, MODEL, newest=3)
