"""Training in float32, one step and fifty: every optimizer is as accurate as torch's own (tier B)."""

from dataclasses import replace

import optax
import pytest

from jaxformer.config.models import GPTConfig
from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.errors import ParityError
from jaxformer.evaluation.ladder import TrainingCase, check_twins32, twins
from jaxformer.parity.training.compare import MOST_STEPS, check_training32
from parity_tests.support.helpers import usually

pytestmark = [pytest.mark.optimizers, pytest.mark.slow]

MODEL = GPTConfig(vocab_size=11, context=7, d_model=6, n_layers=1, n_heads=2, d_ff=10)
NOAM = ScheduleConfig(name="noam", warmup=20, d_model=6)
OPTIMIZERS = {
    "sgd, momentum, L2, clipped": (
        OptimizerConfig(name="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01, clip_norm=0.5),
        ScheduleConfig(name="step", decay_every=15),
    ),
    "adam, L2, noam": (OptimizerConfig(name="adam", learning_rate=1.0, beta2=0.98, epsilon=1e-9, weight_decay=0.1), NOAM),
    "adamw, clipped, cosine": (
        OptimizerConfig(name="adamw", learning_rate=0.1, weight_decay=0.1, clip_norm=1.0),
        ScheduleConfig(name="cosine", warmup=10, last=40, floor=0),
    ),
}


@pytest.mark.parametrize("case", usually(OPTIMIZERS, "adam, L2, noam"))
def test_one_step_and_fifty(case):
    optimizer, schedule = OPTIMIZERS[case]
    assert (
        check_twins32(TrainingCase(model=MODEL, optimizer=optimizer, schedule=schedule, smoothing=0.1, steps=MOST_STEPS)) <= 1
    )


ADAM = TrainingCase(model=MODEL, optimizer=OptimizerConfig(name="adam", learning_rate=0.1), steps=2)


OPTAXS = optax.chain(optax.scale_by_adam(), optax.scale_by_learning_rate(0.1))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"jax_optimizer": OPTAXS}, "(first step|losses) in float32: error "),  # which one comes first, rounding decides
        ({"jax_loss": lambda *given, key: (1 + 1e-6) * ADAM.spec().jax_loss(*given, key=key)}, "losses in float32: error "),
    ],
    ids=["optax rounds 1 - beta^t", "a loss off by 1e-6"],
)
def test_what_float32_shows_alone(wrong, says):
    with pytest.raises(ParityError, match=says):
        check_training32(*twins(ADAM), replace(ADAM.spec(), **wrong))
