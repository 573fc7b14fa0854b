"""The train step is pure: however it is cut, mapped or differentiated, the numbers are the same."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.data.batches import cover, draw_windows
from jaxformer.models import build
from jaxformer.pytree import named_leaves
from jaxformer.runs.checkpoint import digest
from jaxformer.training.losses import cross_entropy, mean
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.step import make_evaluate, make_train_steps, step_keys, train_state, train_step
from tests.tiny import quick_key, tiny_config

CONFIG = tiny_config(n_layers=1, attention_dropout=0.2, residual_dropout=0.2, qkv_bias=False)
"""Softmax ignores a bias of the keys: its gradient is rounding, which Adam turns into whole steps."""
OPTIMIZER = make_optimizer(
    OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.1, clip_norm=1.0),
    ScheduleConfig(name="cosine", warmup=2, last=9),
)
IDS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 157, dtype=np.int32)
DATA = jnp.asarray(IDS)


def loss(model, batch, key):
    return cross_entropy(model(batch.inputs, key=key), batch.targets)


def begin(seed: int = 0):
    return fresh(quick_key(seed))


@jax.jit
def fresh(key):
    return train_state(build(CONFIG, rngs=key), OPTIMIZER)


@pytest.fixture(scope="module")
def steps():
    return make_train_steps(loss, OPTIMIZER, partial(draw_windows, batch=3, context=CONFIG.context))


def taken(steps, cuts, seed=7):
    state = begin()
    for n in cuts:
        state, value = steps(state, DATA, quick_key(seed), jnp.int32(n))
    return digest(state), int(state.step), float(value)


@pytest.mark.slow
def test_how_steps_are_cut_changes_nothing(steps):
    whole = taken(steps, [6])
    assert taken(steps, [1] * 6)[:2] == whole[:2]
    assert taken(steps, [2, 3, 1])[:2] == whole[:2]
    assert taken(steps, [6])[0] == whole[0]
    assert taken(steps, [6], seed=8)[0] != whole[0]
    assert whole[1] == 6
    assert steps.run.args[0]._cache_size() == 1, "one compilation serves every n"


@pytest.mark.slow
def test_the_loss_of_a_dispatch_is_the_mean_over_its_steps(steps):
    state, values = begin(), []
    for _ in range(4):
        state, value = steps(state, DATA, quick_key(7), jnp.int32(1))
        values.append(float(value))
    assert taken(steps, [4])[2] == pytest.approx(np.mean(values), rel=1e-6)


@pytest.mark.slow
def test_a_dispatch_is_the_pure_step_repeated(steps):
    state = begin()
    one = jax.jit(partial(train_step, loss=loss, optimizer=OPTIMIZER))
    for step in range(2):
        batch_key, dropout_key = step_keys(quick_key(7), jnp.int32(step))
        state, _ = one(state, draw_windows(DATA, batch_key, 3, CONFIG.context), dropout_key)
    fused, _ = steps(begin(), DATA, quick_key(7), jnp.int32(2))
    for name, leaf in named_leaves(state).items():
        np.testing.assert_allclose(leaf, named_leaves(fused)[name], rtol=1e-5, atol=1e-7, err_msg=name)


def test_keys_differ_from_step_to_step_and_between_batch_and_dropout():
    keys = [key for step in range(20) for key in step_keys(quick_key(0), jnp.int32(step))]
    assert len({jax.random.key_data(key).tobytes() for key in keys}) == 40


def test_evaluate_is_the_mean_over_every_token():
    model = begin(1).model
    windows = cover(IDS, 4, CONFIG.context)
    losses = []
    call = jax.jit(lambda model, inputs: jax.nn.log_softmax(model(inputs), -1))
    for inputs, targets in zip(windows.inputs.reshape(-1, 1, 8), windows.targets.reshape(-1, 1, 8), strict=True):
        scores = np.asarray(call(model, inputs))[0]
        losses += [-scores[t, target] for t, target in enumerate(targets[0]) if target >= 0]
    assert len(losses) == len(IDS) - 1
    assert len(losses) % 32 != 0, "the last batch has to be an unequal one"
    evaluate = make_evaluate(loss)
    assert evaluate(model, windows) == pytest.approx(np.mean(losses), rel=1e-6)
    assert evaluate(model, cover(IDS, 7, CONFIG.context)) == pytest.approx(np.mean(losses), rel=1e-6)


@pytest.fixture(scope="module")
def batch():
    return draw_windows(DATA, quick_key(5), 3, CONFIG.context)


@pytest.mark.slow
def test_train_step_under_vmap_is_each_alone(batch):
    step = partial(train_step, loss=loss, optimizer=OPTIMIZER)
    states = [begin(seed) for seed in range(3)]
    together, values = jax.jit(jax.vmap(step, in_axes=(0, None, None)))(
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *states), batch, None
    )
    alone, value = jax.jit(step)(states[1], batch, None)
    assert float(values[1]) == pytest.approx(float(value), rel=1e-6)
    for name, leaf in named_leaves(alone.model).items():
        np.testing.assert_allclose(named_leaves(together.model)[name][1], leaf, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.fixture(scope="module")
def gradient(batch):
    model = begin(1).model
    return model, jax.jit(jax.grad(lambda model: mean(*loss(model, batch, None))))(model)


@pytest.mark.slow
def test_gradients_of_single_examples_add_up(batch, gradient):
    model, whole = gradient

    def of_one(model, inputs, targets):
        total, count = cross_entropy(model(inputs[None]), targets[None])
        return total / count

    each = jax.jit(jax.vmap(jax.grad(of_one), in_axes=(None, 0, 0)))(model, batch.inputs, batch.targets)
    for name, leaf in named_leaves(each).items():
        assert leaf.shape[0] == 3
        np.testing.assert_allclose(leaf.mean(0), named_leaves(whole)[name], rtol=1e-4, atol=1e-6, err_msg=name)


def test_forward_mode_agrees_with_reverse_mode(batch, gradient):
    model, whole = gradient
    direction = begin(2).model
    _, slope = jax.jit(partial(jax.jvp, lambda model: mean(*loss(model, batch, None))))((model,), (direction,))
    wanted = sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(direction), strict=True))
    assert float(slope) == pytest.approx(float(wanted), rel=1e-4)
    assert abs(float(wanted)) > 1e-4
