"""Training, one step and a hundred, in float64 from the same excited weights."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
import torch

import torch_ref.models
from jaxformer.config.models import EncoderDecoderConfig, GPTConfig
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_torch
from jaxformer.evaluation.ladder import TrainingCase, compare_twins, load_torch
from jaxformer.models import abstract
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from jaxformer.training.step import train_state, train_step
from parity_tests.support.helpers import usually
from torch_ref.training.optimizers import make_optimizer as make_torch_optimizer
from torch_ref.training.step import train_step as torch_train_step

pytestmark = pytest.mark.optimizers

MODEL = GPTConfig(vocab_size=23, context=13, d_model=12, n_layers=2, n_heads=3, d_ff=20)
RATES = {"attention_dropout": 0.2, "residual_dropout": 0.1, "feed_forward_dropout": 0.3, "embedding_dropout": 0.15}
SEQUENCES = EncoderDecoderConfig(
    vocab_size=23, context=13, d_model=12, n_layers=2, n_decoder_layers=1, n_heads=3, d_ff=20, layers="rolled"
)
SMOOTH = {"smoothing": 0.1, "ignore_index": 0}

TRAININGS = {
    "sgd, momentum, L2, clipped": TrainingCase(
        model=MODEL,
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.02, momentum=0.9, weight_decay=0.01, clip_norm=0.5),
        schedule=ScheduleConfig(name="step", decay=0.5, decay_every=30),
    ),
    "adam, noam, smoothed over the others": TrainingCase(
        model=replace(MODEL, norm_position="post", activation="relu"),
        optimizer=OptimizerConfig(name="adam", learning_rate=0.1, beta2=0.98, epsilon=1e-9),
        schedule=ScheduleConfig(name="noam", warmup=20, d_model=12),
        spread="others",
        **SMOOTH,
    ),
    "adam with L2, dropout": TrainingCase(
        model=replace(MODEL, norm="std", projections="fused", **RATES),
        optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, weight_decay=0.1),
    ),
    "adamw, clipped, cosine, smoothed over all": TrainingCase(
        model=replace(MODEL, tied=True, norm="rms", gated=True, activation="silu", n_kv_heads=1),
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3, beta2=0.99, weight_decay=0.1, clip_norm=1.0),
        schedule=ScheduleConfig(name="cosine", warmup=10, last=80),
        spread="all",
        **SMOOTH,
    ),
    "encoder-decoder, adamw, noam, dropout, smoothed over the others but padding": TrainingCase(
        model=replace(SEQUENCES, norm_position="post", activation="relu", tied=True, head_bias=True, **RATES),
        optimizer=OptimizerConfig(name="adamw", learning_rate=0.1, beta2=0.98, epsilon=1e-9, weight_decay=0.1),
        schedule=ScheduleConfig(name="noam", warmup=20, d_model=12),
        spread="others_but_padding",
        **SMOOTH,
    ),
}


@pytest.mark.parametrize("name", usually(TRAININGS, "adamw, clipped, cosine, smoothed over all"))
def test_every_step_is_equal(name):
    training = TRAININGS[name]
    course = compare_twins(training)
    assert [stage.says for stage in course.stages if stage.status != "equal"] == []
    assert [stage.name for stage in course.stages] == ["loss", "optimizer", "schedule", "train"]
    assert len(course.steps) == training.steps
    assert all(name.endswith(("key.bias", "qkv.bias")) for name in course.nulls)


def test_the_train_steps_of_recipes_are_equal(float64):
    """`train_step` of both sides, which the courses above do without."""
    training = TrainingCase(
        model=GPTConfig(vocab_size=11, context=7, d_model=6, n_layers=1, n_heads=2, d_ff=10),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, clip_norm=0.1),
        schedule=ScheduleConfig(name="cosine", warmup=2, last=9),
        steps=3,
    )
    learning, start = training.spec(), excite(abstract(training.model), seed=1)
    twin = load_torch(torch_ref.models.build(training.model), start).double().train()
    optimizer, scheduler = make_torch_optimizer(twin, training.optimizer, training.schedule)

    def torch_loss(model, batch):
        return 3 * learning.torch_loss(model, *batch), torch.tensor(3.0)

    def jax_loss(model, batch, key):
        return 3 * learning.jax_loss(model, *batch, key=key), jnp.float64(3)

    advance = jax.jit(partial(train_step, loss=jax_loss, optimizer=learning.jax_optimizer))
    state, given = train_state(to_float64(start), learning.jax_optimizer), {"optimizer": optimizer, "scheduler": scheduler}
    for batch in learning.batches:
        tensors = *map(torch.from_numpy, batch[:-1]), torch.from_numpy(batch[-1]).long()
        theirs = torch_train_step(twin, tensors, loss=torch_loss, clip_norm=training.optimizer.clip_norm, **given)
        state, ours = advance(state, tuple(map(jnp.asarray, batch)), None)
        check_float64("loss", ours, theirs, "loss")
    for name, array in to_torch(state.model, TWIN).items():
        check_float64(name, array, twin.state_dict()[name], "parameter")
