"""TrainingSpec-rate factors: against the twin, and against torch's own schedulers, which work by recurrence."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR, StepLR

from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.training.optimizers import make_optimizer
from jaxformer.training.schedules import make_schedule
from torch_ref.training.optimizers import make_optimizer as make_torch_optimizer
from torch_ref.training.schedules import make_schedule as make_torch_schedule

pytestmark = pytest.mark.optimizers

STEPS = 70
CONFIGS = {
    "constant": ScheduleConfig(),
    "step": ScheduleConfig(name="step", decay=0.3, decay_every=9),
    "noam": ScheduleConfig(name="noam", warmup=20, d_model=24),
    "noam, LambdaLR's count": ScheduleConfig(name="noam", warmup=20, d_model=24, first_step=0),
    "inverse_root": ScheduleConfig(name="inverse_root", warmup=20),
    "inverse_root, later": ScheduleConfig(name="inverse_root", warmup=20, first_step=9),
    "cosine": ScheduleConfig(name="cosine", warmup=7, last=60, floor=0.1),
}


def factors(config: ScheduleConfig) -> np.ndarray:
    schedule = make_schedule(config)
    return np.array([float(schedule(jnp.int32(step))) for step in range(STEPS)])


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_twins(config, float64):
    schedule = make_torch_schedule(config)
    np.testing.assert_allclose(factors(config), [schedule(step) for step in range(STEPS)], rtol=1e-14)


def torch_rates(make) -> np.ndarray:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimizer)
    rates = []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(rates)


def test_step_decay_is_step_lr(float64):
    config = CONFIGS["step"]
    rates = torch_rates(lambda optimizer: StepLR(optimizer, config.decay_every, config.decay))
    np.testing.assert_allclose(factors(config), rates, rtol=1e-13)


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")  # torch's SequentialLR warns of itself
def test_cosine_is_torchs_recurrence_until_the_floor_and_then_stays(float64):
    config = CONFIGS["cosine"]

    def make(optimizer):
        warmup = LinearLR(optimizer, 1 / (config.warmup + 1), total_iters=config.warmup)
        cosine = CosineAnnealingLR(optimizer, config.last - config.warmup, config.floor)
        return SequentialLR(optimizer, [warmup, cosine], [config.warmup])

    found, rates = factors(config), torch_rates(make)
    np.testing.assert_allclose(found[: config.last + 1], rates[: config.last + 1], rtol=1e-12)
    assert np.all(found[config.last :] == found[config.last])
    assert rates[-1] > rates[config.last] * 1.1  # torch's rises again


def test_noam_peaks_after_the_warm_up(float64):
    assert factors(CONFIGS["noam"]).argmax() == CONFIGS["noam"].warmup - 1


def annotated(step: int) -> float:
    """The Annotated Transformer's own, in plain Python: LambdaLR calls it with 0 first."""
    step = 1 if step == 0 else step
    return 24**-0.5 * min(step**-0.5, step * 20**-1.5)


def test_the_first_step_may_be_number_0_with_the_rate_of_number_1(float64):
    rates = torch_rates(lambda optimizer: LambdaLR(optimizer, annotated))
    np.testing.assert_allclose(factors(CONFIGS["noam, LambdaLR's count"]), rates, rtol=1e-14)
    assert rates[0] == rates[1]


@pytest.mark.parametrize(
    "schedule",
    [annotated, lambda step: 0.5 * (1 + math.cos(math.pi * step / STEPS)), lambda step: 1 / (1 + step)],
    ids=["if and min", "math", "traced"],
)
def test_any_function_of_the_step_is_a_schedule_under_jit_too(schedule, float64):
    optimizer = make_optimizer(OptimizerConfig(name="sgd", learning_rate=0.1), schedule)

    @jax.jit
    def run(params):
        def one(_, carry):
            params, state = carry
            updates, state = optimizer.update({"p": jnp.ones(())}, state, params)
            return optax.apply_updates(params, updates), state

        return jax.lax.fori_loop(0, STEPS, one, (params, optimizer.init(params)))[0]

    parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    module = torch.nn.ParameterDict({"p": parameter})
    theirs, scheduler = make_torch_optimizer(module, OptimizerConfig(name="sgd", learning_rate=0.1), schedule)
    for _ in range(STEPS):
        parameter.grad = torch.ones_like(parameter)
        theirs.step()
        scheduler.step()
    np.testing.assert_allclose(run({"p": jnp.zeros(())})["p"], parameter.detach().numpy(), rtol=1e-13)
