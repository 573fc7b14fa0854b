"""Learning-rate factors as functions of the number of steps already taken, for torch's LambdaLR."""

import math
from collections.abc import Callable

from jaxformer.config.settings import ScheduleConfig
from jaxformer.validation.fields import check_function

Schedule = Callable[[int], float]


def make_schedule(config: ScheduleConfig | Schedule) -> Schedule:
    """Return the factor of the learning rate for step 0, 1, 2, ...; a function of the step is returned as it is."""
    if isinstance(config, ScheduleConfig):
        return SCHEDULES[config.name](config)
    check_function("schedule", config, "a ScheduleConfig, or a function of the step")
    return config


def constant(config: ScheduleConfig) -> Schedule:
    """Constant factor 1."""
    return lambda step: 1.0


def step_decay(config: ScheduleConfig) -> Schedule:
    """decay^(floor(step / decay_every)): StepLR."""
    return lambda step: config.decay ** (step // config.decay_every)


def noam(config: ScheduleConfig) -> Schedule:
    """D^-0.5 min(s^-0.5, s warmup^-1.5) with s = step + first_step (Vaswani et al. 2017, equation 3)."""

    def factor(step: int) -> float:
        s = max(step + config.first_step, 1)
        return config.d_model**-0.5 * min(s**-0.5, s * config.warmup**-1.5)

    return factor


def inverse_root(config: ScheduleConfig) -> Schedule:
    """min(s / warmup, sqrt(warmup / s)) with s = step + first_step: `noam` with its peak at 1, whatever the model's width."""

    def factor(step: int) -> float:
        s = max(step + config.first_step, 1)
        return min(s / config.warmup, (config.warmup / s) ** 0.5)

    return factor


def warmup_cosine(config: ScheduleConfig) -> Schedule:
    """(step + 1) / (warmup + 1) up to the peak, then a half cosine to the floor, where it stays."""

    def factor(step: int) -> float:
        if step < config.warmup:
            return (step + 1) / (config.warmup + 1)
        part = min((step - config.warmup) / (config.last - config.warmup), 1)
        return config.floor + (1 - config.floor) * 0.5 * (1 + math.cos(math.pi * part))

    return factor


SCHEDULES = {"constant": constant, "step": step_decay, "noam": noam, "inverse_root": inverse_root, "cosine": warmup_cosine}
