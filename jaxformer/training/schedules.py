"""Learning-rate factors as functions of the number of steps already taken."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.config.settings import ScheduleConfig
from jaxformer.validation.fields import check_function

Schedule = Callable[[Any], Any]
"""Function of step 0, 1, 2, ... that returns the factor of the learning rate."""
UNTRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
"""Errors raised by `if`, `min` and `math` on a number that jit does not know yet."""


def make_schedule(config: ScheduleConfig | Schedule) -> Schedule:
    """Return a configuration's schedule, or a function of the step: one that jit cannot trace runs on the host at each step."""
    if isinstance(config, ScheduleConfig):
        return SCHEDULES[config.name](config)
    check_function("schedule", config, "a ScheduleConfig, or a function of the step")
    return traceable(config)


def traceable(schedule: Schedule) -> Schedule:
    """Make a schedule of plain Python, as torch's LambdaLR takes it, work inside jit."""

    def factor(step):
        real = jnp.result_type(float)
        try:
            return schedule(jnp.asarray(step, jnp.result_type(int)))
        except UNTRACED:
            shape = jax.ShapeDtypeStruct((), real)
            return jax.pure_callback(lambda step: np.asarray(schedule(int(step)), real), shape, step, vmap_method="sequential")

    return factor


def constant(config: ScheduleConfig) -> Schedule:
    """Constant factor 1."""
    return lambda step: jnp.ones_like(_real(step))


def step_decay(config: ScheduleConfig) -> Schedule:
    """decay^(floor(step / decay_every)): torch's StepLR."""
    return lambda step: config.decay ** _real(step // config.decay_every)


def noam(config: ScheduleConfig) -> Schedule:
    """D^-0.5 min(s^-0.5, s warmup^-1.5) with s = step + first_step (Vaswani et al. 2017, equation 3)."""

    def factor(step):
        s = _number(step, config)
        return config.d_model**-0.5 * jnp.minimum(s**-0.5, s * config.warmup**-1.5)

    return factor


def inverse_root(config: ScheduleConfig) -> Schedule:
    """min(s / warmup, sqrt(warmup / s)) with s = step + first_step: `noam` with its peak at 1, whatever the model's width."""

    def factor(step):
        s = _number(step, config)
        return jnp.minimum(s / config.warmup, (config.warmup / s) ** 0.5)

    return factor


def warmup_cosine(config: ScheduleConfig) -> Schedule:
    """(step + 1) / (warmup + 1) up to the peak, then a half cosine to the floor.

    torch reaches the same factors by a recurrence, LinearLR(1 / (warmup + 1)) followed by CosineAnnealingLR:
    f(t + 1) = floor + (f(t) - floor) (1 + cos(pi (t + 1) / n)) / (1 + cos(pi t / n)), n = last - warmup, which rises
    again after `last`; this one stays at the floor.
    """

    def factor(step):
        s = _real(step)
        part = jnp.clip((s - config.warmup) / (config.last - config.warmup), 0, 1)
        cosine = config.floor + (1 - config.floor) * 0.5 * (1 + jnp.cos(jnp.pi * part))
        return jnp.where(s < config.warmup, (s + 1) / (config.warmup + 1), cosine)

    return factor


def _number(step, config: ScheduleConfig):
    """Return the number of a step, counted from `first_step`, but at least 1."""
    return jnp.maximum(_real(step) + config.first_step, 1)


def _real(step):
    """Cast the step to a float of the default width."""
    return jnp.asarray(step, jnp.result_type(float))


SCHEDULES = {"constant": constant, "step": step_decay, "noam": noam, "inverse_root": inverse_root, "cosine": warmup_cosine}
