"""Mutants of losses, dropout, optimizers and schedules."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import Array

from jaxformer.config.settings import ScheduleConfig
from jaxformer.evaluation.inject import Mutant, instead, patch
from jaxformer.models import encoder_decoder
from jaxformer.nn import blocks
from jaxformer.training import losses, optimizers
from jaxformer.training.schedules import Schedule


def over_padding(original: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """Divide the loss by the number of all targets, padding included."""
    return lambda logits, targets, **rules: (original(logits, targets, **rules)[0], jnp.full((), targets.size, logits.dtype))


def spread_over_all(original: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """Smooth labels by epsilon / K, whatever spread is configured."""
    return lambda logits, targets, **rules: original(logits, targets, **(rules | {"spread": "all"}))


def at_full_size(logits: Array, targets: Array, ignore_index: int, *rules: object) -> tuple[Array, Array]:
    """Compute the loss as logsumexp(x) - x[y], a difference of large numbers: imprecise in float32 where the model is sure."""
    kept = targets != ignore_index
    wanted = jnp.take_along_axis(logits, jnp.where(kept, targets, 0)[..., None], -1)[..., 0]
    return jnp.where(kept, jax.nn.logsumexp(logits, -1) - wanted, jnp.zeros_like(wanted)), kept.astype(logits.dtype)


def rounded(beta: float, count: Array) -> Array:
    """Compute 1 - beta^count with a rounded beta, as optax does."""
    return 1 - jnp.asarray(beta, jnp.result_type(float)) ** count


def epsilon_in_the_root(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """Divide by sqrt(v + epsilon) in place of sqrt(v) + epsilon."""
    return optax.scale_by_adam(beta1, beta2, eps=0.0, eps_root=epsilon)


def unscaled(original: Callable[..., Array]) -> Callable[..., Array]:
    """Drop without scaling up what remains."""
    return lambda x, rate, key: original(x, rate, key) * (1 - rate)


def one_step_ahead(original: Callable[[ScheduleConfig], Schedule]) -> Callable[[ScheduleConfig], Schedule]:
    """Use the second step's learning rate in the first step, and so on."""
    return lambda config: lambda step: original(config)(step + 1)


LOSSES = [
    Mutant("label smoothing epsilon/K for epsilon/(K-1)", patch(losses, cross_entropy=spread_over_all), "sgd"),
    Mutant("label smoothing epsilon/K for epsilon/(K-2)", patch(losses, cross_entropy=spread_over_all), "adam"),
    Mutant("loss averaged over padding", patch(losses, cross_entropy=over_padding), "sgd"),
    Mutant("cross-entropy of logits at full size", instead(losses, target_losses=at_full_size), "sure"),
    Mutant("dropout without its scale", patch(blocks, dropout=unscaled), "sgd"),
]

OPTIMIZERS = [
    Mutant("Adam's bias correction rounded", instead(optimizers, bias_correction=rounded), "adam"),
    Mutant(
        "Adam epsilon inside the root",
        instead(optimizers, scale_by_adam=epsilon_in_the_root),
        "adam",
        says="torch adds epsilon after the root.*; jax adds epsilon under the root",
    ),
    Mutant(
        "coupled for decoupled decay",
        instead(optimizers.DIRECTIONS, adamw=optimizers.DIRECTIONS["adam"]),
        "adamw",
        says="torch decays weights apart from the gradient .*; jax adds the weight decay to the gradient",
    ),
    Mutant(
        "decay on gains and biases",
        instead(optimizers.DECAYED, matrices=lambda name, shape: True),
        "adamw",
        says="torch decays some parameters; jax decays all parameters",
    ),
    Mutant(
        "clip without the 1e-6",
        instead(optimizers, clip=optax.clip_by_global_norm),
        "sgd",
        says=r"torch clips gradients by max / \(norm \+ 1e-6\); jax clips gradients by max / norm ",
    ),
    Mutant("learning rate one step ahead", patch(optimizers, make_schedule=one_step_ahead), "adamw"),
    Mutant("Noam's rate one step ahead", patch(optimizers, make_schedule=one_step_ahead), "noam"),
    Mutant("encoder and decoder with one key", patch(encoder_decoder, split_key=lambda f: lambda key, n: [key] * n), "noam"),
]

MUTANTS = (*LOSSES, *OPTIMIZERS)
