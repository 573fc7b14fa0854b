"""Learning-rate factors as functions of the number of steps already taken."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxformer.settings import ScheduleConfig

Schedule = Callable[[Any], Any]


def make_schedule(config: ScheduleConfig) -> Schedule:
    """The factor of the learning rate for step 0, 1, 2, ..."""
    return SCHEDULES[config.name](config)


def constant(config: ScheduleConfig) -> Schedule:
    """Always 1."""
    return lambda step: jnp.ones_like(_real(step))


def step_decay(config: ScheduleConfig) -> Schedule:
    """decay^(floor(step / decay_every)): torch's StepLR."""
    return lambda step: config.decay ** _real(step // config.decay_every)


def noam(config: ScheduleConfig) -> Schedule:
    """D^-0.5 min(s^-0.5, s warmup^-1.5) with s = step + 1 (Vaswani et al. 2017, equation 3)."""

    def factor(step):
        s = _real(step) + 1
        return config.d_model**-0.5 * jnp.minimum(s**-0.5, s * config.warmup**-1.5)

    return factor


def inverse_root(config: ScheduleConfig) -> Schedule:
    """min(s / warmup, sqrt(warmup / s)) with s = step + 1: `noam` with its peak at 1, whatever the model's width."""

    def factor(step):
        s = _real(step) + 1
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


def _real(step):
    """The step as a float of the default width."""
    return jnp.asarray(step, jnp.result_type(float))


SCHEDULES = {"constant": constant, "step": step_decay, "noam": noam, "inverse_root": inverse_root, "cosine": warmup_cosine}
