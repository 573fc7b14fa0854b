"""optax's optimizers with torch's exact meaning."""

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from jaxformer.nn.tree import map_named
from jaxformer.settings import OptimizerConfig, ScheduleConfig
from jaxformer.training.schedules import make_schedule

CLIP_EPSILON = 1e-6
"""torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6."""


def make_optimizer(optimizer: OptimizerConfig, schedule: ScheduleConfig) -> optax.GradientTransformation:
    """Clip, then SGD, Adam or AdamW as torch.optim defines them, with rate learning_rate * schedule(step)."""
    factor = make_schedule(schedule)
    return optax.chain(
        clip(optimizer.clip_norm) if optimizer.clip_norm is not None else optax.identity(),
        *DIRECTIONS[optimizer.name](optimizer),
        optax.scale_by_learning_rate(lambda step: optimizer.learning_rate * factor(step)),
    )


def clip(max_norm: float) -> optax.GradientTransformation:
    """Scale the gradient by min(1, max_norm / (norm + 1e-6))."""

    def scaled(gradient: PyTree, params: PyTree | None) -> PyTree:
        scale = jnp.minimum(1.0, max_norm / (optax.tree.norm(gradient) + CLIP_EPSILON))
        return jax.tree.map(lambda g: g * scale.astype(g.dtype), gradient)

    return optax.stateless(scaled)


def matrices(tree: PyTree) -> PyTree:
    """True for kernels and tables: by name, since a stacked bias has two axes as well."""
    return map_named(lambda name, leaf: name.endswith((".kernel", ".table")), tree)


def _sgd(config: OptimizerConfig) -> list[optax.GradientTransformation]:
    momentum = [optax.trace(config.momentum)] if config.momentum else []
    return [optax.add_decayed_weights(config.weight_decay), *momentum]


def _adam(config: OptimizerConfig) -> list[optax.GradientTransformation]:
    return [optax.add_decayed_weights(config.weight_decay), optax.scale_by_adam(config.beta1, config.beta2, config.epsilon)]


def _adamw(config: OptimizerConfig) -> list[optax.GradientTransformation]:
    decay = optax.add_decayed_weights(config.weight_decay, mask=matrices)
    return [optax.scale_by_adam(config.beta1, config.beta2, config.epsilon), decay]


DIRECTIONS = {"sgd": _sgd, "adam": _adam, "adamw": _adamw}
