"""Training, one step and a hundred, in float64 from the same excited weights."""

from dataclasses import replace

import numpy as np
import pytest

from jaxformer.config import EncoderDecoderConfig, GPTConfig
from jaxformer.errors import ParityError
from jaxformer.parity.training import Training, check_course, jax_course, torch_course
from jaxformer.settings import OptimizerConfig, ScheduleConfig

pytestmark = pytest.mark.optimizers

MODEL = GPTConfig(vocab_size=23, context=13, d_model=12, n_layers=2, n_heads=3, d_ff=20)
RATES = {"attention_dropout": 0.2, "residual_dropout": 0.1, "feed_forward_dropout": 0.3, "embedding_dropout": 0.15}
DROPPED = replace(MODEL, projections="fused", **RATES)
SEQUENCES = EncoderDecoderConfig(
    vocab_size=23, context=13, d_model=12, n_layers=2, n_decoder_layers=1, n_heads=3, d_ff=20, layers="rolled"
)
SMOOTH = {"smoothing": 0.1, "ignore_index": 0}

TRAININGS = {
    "sgd, momentum, L2, clipped": Training(
        model=MODEL,
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.02, momentum=0.9, weight_decay=0.01, clip_norm=0.5),
        schedule=ScheduleConfig(name="step", decay=0.5, decay_every=30),
    ),
    "adam, noam, smoothed over the others": Training(
        model=replace(MODEL, norm_position="post", activation="relu"),
        optimizer=OptimizerConfig(name="adam", learning_rate=0.1, beta2=0.98, epsilon=1e-9),
        schedule=ScheduleConfig(name="noam", warmup=20, d_model=12),
        spread="others",
        **SMOOTH,
    ),
    "adam with L2, smoothed over the others but padding": Training(
        model=replace(MODEL, norm="std", projections="fused"),
        optimizer=OptimizerConfig(name="adam", learning_rate=1e-3, weight_decay=0.1),
        spread="others_but_padding",
        **SMOOTH,
    ),
    "adamw, clipped, cosine, smoothed over all": Training(
        model=replace(MODEL, tied=True, norm="rms", gated=True, activation="silu", n_kv_heads=1),
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3, beta2=0.99, weight_decay=0.1, clip_norm=1.0),
        schedule=ScheduleConfig(name="cosine", warmup=10, last=80),
        spread="all",
        **SMOOTH,
    ),
    "adamw with dropout": Training(
        model=DROPPED, optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1), steps=20
    ),
    "encoder-decoder, adam, noam, smoothed over the others but padding": Training(
        model=replace(SEQUENCES, norm_position="post", activation="relu", embedding_scale=True, tied=True, head_bias=True),
        optimizer=OptimizerConfig(name="adam", learning_rate=0.1, beta2=0.98, epsilon=1e-9),
        schedule=ScheduleConfig(name="noam", warmup=20, d_model=12),
        spread="others_but_padding",
        **SMOOTH,
    ),
    "encoder-decoder with dropout": Training(
        model=replace(SEQUENCES, source_vocab_size=29, **RATES),
        optimizer=OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1),
        steps=20,
    ),
}


@pytest.fixture(scope="module", params=TRAININGS, ids=lambda name: name.replace(" ", "_"))
def courses(request):
    training = TRAININGS[request.param]
    return jax_course(training), torch_course(training), training


def test_every_step_is_equal(courses):
    ours, reference, training = courses
    assert len(ours.losses) == training.steps
    nulls = check_course(ours, reference, training)
    biased = [name for name in reference.last if name.endswith(("key.bias", "qkv.bias"))]
    assert set(nulls) <= set(biased)


def test_something_was_learned(courses):
    ours, _, _ = courses
    assert all(np.abs(ours.last[name] - first).max() > 0 for name, first in ours.first.items())


def test_a_difference_of_a_part_in_a_billion_is_noticed(courses):
    ours, reference, training = courses
    nulls = check_course(ours, reference, training)
    losses = replace(ours, losses=ours.losses * (1 + 1e-9))
    with pytest.raises(ParityError, match="loss of step"):
        check_course(losses, reference, training)
    name = next(name for name in ours.last if name not in nulls)
    for when in ("first", "last"):
        moved = dict(getattr(ours, when))
        moved[name] = moved[name] * (1 + 1e-9)
        with pytest.raises(ParityError, match=name):
            check_course(replace(ours, **{when: moved}), reference, training)
