"""Losses that are not finite change no weights; what stands out is counted and told."""

import re
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from rich.console import Console

import torch_ref.training.step as twin
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.errors import NonFiniteError
from jaxformer.runs.checkpoint import digest, load_state, save_state
from jaxformer.runs.folder import RunFolder
from jaxformer.training.diagnostics import marks, remedy, said_of_divergence, sound_until
from jaxformer.training.health import MEMORY, healthy
from jaxformer.training.loop import Plan, fit
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.step import make_shaped_train_steps, make_train_steps, train_state, train_step

OPTIMIZER = make_optimizer(OptimizerConfig(name="adam", learning_rate=0.1), ScheduleConfig())
KEY = jax.random.key(0)


def loss(model, batch, key):
    """A parabola whose loss is not finite where the batch says so."""
    x, bad = batch
    return jnp.sum((model["w"] - x) ** 2) * jnp.where(bad > 0, jnp.nan, 1), jnp.ones(())


def batches(*bad: int) -> list:
    return [(jnp.float32(3), jnp.float32(it)) for it in bad]


def begin():
    return train_state({"w": jnp.ones(2)}, OPTIMIZER)


@pytest.fixture(scope="module")
def one():
    return jax.jit(partial(train_step, key=None, loss=loss, optimizer=OPTIMIZER))


def taken(one, *bad: int):
    state = begin()
    for batch in batches(*bad):
        state, _ = one(state, batch)
    return state


def weights_and_moments(state):
    return digest((state.model, state.moments))


def test_a_step_that_is_not_finite_changes_nothing(one):
    with_one, without = taken(one, 0, 1, 0), taken(one, 0, 0)
    assert weights_and_moments(with_one) == weights_and_moments(without)
    assert (int(with_one.step), int(without.step)) == (3, 2)
    assert (int(with_one.health.skipped), int(with_one.health.last_skipped), int(with_one.health.in_a_row)) == (1, 1, 0)
    assert int(with_one.health.taken) == 2


def test_unguarded_it_spoils_the_weights(one, monkeypatch):
    """The control."""
    monkeypatch.setattr(jax.lax, "cond", lambda condition, taken, _, *given: taken(*given))
    unguarded = jax.jit(partial(train_step, key=None, loss=loss, optimizer=OPTIMIZER))
    assert np.isnan(unguarded(begin(), *batches(1))[0].model["w"]).all()


def test_the_twin_skips_too():
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    def twin_loss(model, batch):
        return model(batch[0]).sum(), torch.ones(())

    before = [parameter.detach().clone() for parameter in model.parameters()]
    for bad, moved in ((torch.nan, False), (torch.inf, False), (1.0, True)):
        batch = (torch.full((1, 1), bad),)
        twin.train_step(model, batch, loss=twin_loss, optimizer=optimizer, scheduler=scheduler)
        assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)) is moved
        assert scheduler.last_epoch == int(moved)


@pytest.mark.parametrize("make", ["fused", "shaped"])
def test_after_three_in_a_row_the_state_stays(make):
    bad = jnp.float32([0, 1, 0, 1, 1, 1, 0])
    if make == "fused":
        steps = make_train_steps(loss, OPTIMIZER, lambda data, key: data)
        state, values = begin(), []
        for it in bad:
            state, value = steps(state, (jnp.float32(3), it), KEY, 1)
            values.append(float(value))
        assert np.isnan(values).tolist() == [False, True, False, True, True, True, True]
    else:
        steps = make_shaped_train_steps(loss, OPTIMIZER, lambda step: (jnp.float32(3), bad[step]))
        state, value = steps(begin(), None, KEY, 7)
        assert 7 < float(value) < 8.1, "the mean of the two that were taken"
    assert (int(state.step), int(state.health.in_a_row), int(state.health.skipped), int(state.health.taken)) == (6, 3, 4, 2)


PLAN = Plan(
    steps=8, evaluate_every=4, save_every=4, tokens_per_step=1, evaluate=lambda model: {}, on_evaluate=lambda model, line: None
)


def run_of(tmp_path, *bad: int, plan: Plan = PLAN):
    """A run over these batches, and what it said."""
    steps = make_shaped_train_steps(loss, OPTIMIZER, lambda step: (jnp.float32(3), jnp.float32(bad[step])))
    run, said = RunFolder.create(tmp_path / "run", {}), StringIO()
    plan = replace(plan, examine=partial(steps.examine, None, KEY))
    try:
        fit(begin(), plan, run, lambda state, n: steps(state, None, KEY, n), Console(file=said, width=200))
    except NonFiniteError as error:
        return run, said.getvalue(), str(error)
    return run, said.getvalue(), ""


def test_one_bad_batch_is_told_and_marked_and_the_run_goes_on(tmp_path):
    run, said, error = run_of(tmp_path, 0, 0, 1, 0, 0, 0, 0, 0)
    assert error == ""
    told = r"warning: the loss or the gradient of step 3 is not finite: skipped, 1 of [34] steps so far\n"
    assert re.fullmatch(told, said)
    first, second = run.metrics
    assert (first["skipped"], first["last_skipped"]) == (1, 3)
    assert "skipped" not in second
    assert first["loss"] > second["loss"] > 0


def test_three_bad_ones_stop_it_and_nothing_of_them_is_kept(tmp_path):
    run, said, error = run_of(tmp_path, 0, 0, 0, 0, 0, 1, 1, 1)
    assert said.count("is not finite: skipped") in (2, 3), "one a dispatch"
    assert error == (
        "the loss or the gradient of steps 6 to 8 is not finite, and none of them was applied; step 8: loss nan, gradient norm "
        f"w nan; its batch: 0 float32[] from 3.0 to 3.0, 1 float32[] from 1.0 to 1.0; go on with --resume 4 "
        f"--out {run.path} and a lower --optimizer.learning-rate"
    )
    assert int(load_state(run.checkpoints, begin()).step) == 4


@pytest.mark.parametrize(
    ("losses", "step"), [([], 0), ([3, 2, 1.9], 3), ([3, 2, 9], 2), ([3, 1e9, 1e9], 1), ([1e9, 1e9], 0), ([3, 9, 2], 3)]
)
def test_losses_are_sound_until_they_grow(losses, step):
    lines = [{"step": at, "loss": 3.0, "val_loss": float(loss)} for at, loss in enumerate(losses, start=1)]
    assert sound_until(lines, first=4.0) == step


def test_a_ruined_checkpoint_is_not_recommended(tmp_path):
    run = RunFolder.create(tmp_path / "run", {})
    for step, loss in ((4, 2.0), (8, 1e9)):
        run.log({"step": step, "loss": loss})
        (run.checkpoints / str(step)).mkdir(parents=True)
    assert remedy(run, 3.0).startswith(f"go on with --resume 4 --out {run.path} and a lower --optimizer")
    (run.checkpoints / "4").rmdir()
    assert remedy(run, 3.0) == (
        "no checkpoint is kept from before the losses grew; start anew with another --out and a lower --optimizer.learning-rate"
    )


def test_spikes_are_counted_and_divergence_is_told():
    health, after = healthy(), jax.jit(lambda health, step, value: health.after(step, value, jnp.isfinite(value)))
    for step in range(MEMORY + 20):
        health = after(health, step, 1.0 + step % 2 / 10)
    before, health = health, after(health, 120, 2.5)
    assert marks(before, health) == {"spikes": 1, "last_spike": 121}
    assert marks(before, after(before, 120, 1.9)) == {}
    assert float(health.first_loss) == 1.0
    assert float(health.mean_loss) == pytest.approx(1.05, abs=0.05)
    assert said_of_divergence(3e13, 4.2).startswith("warning: the run diverges: its loss is 3e+13, and began with 4.2; stop it")
    assert said_of_divergence(4.4, 4.2) == ""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Before:
    """A train state without health."""

    step: Any
    model: Any
    moments: Any


def test_a_checkpoint_from_before_loads_and_begins_its_counts(tmp_path, one):
    state = taken(one, 0, 0)
    save_state(tmp_path, 2, Before(state.step, state.model, state.moments))
    found = load_state(tmp_path, begin())
    assert weights_and_moments(found) == weights_and_moments(state)
    assert (int(found.step), int(found.health.taken)) == (2, 0)


@pytest.mark.parametrize(("rate", "is_named"), [(1e-3, True), (1e-39, False)])
def test_a_weight_decay_that_is_far_too_high_is_named(tmp_path, rate, is_named):
    run = RunFolder.create(tmp_path / "run", {"recipe": {"optimizer": {"learning_rate": rate, "weight_decay": 1e38}}})
    (run.checkpoints / "0").mkdir(parents=True)
    said = remedy(run, 3.0)
    assert ("the weight decay times the learning rate is 1e+35, and at most 1 makes sense" in said) == is_named
    assert ("--optimizer.weight-decay or --optimizer.learning-rate" in said) == is_named
