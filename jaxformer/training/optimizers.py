"""optax's optimizers with exactly torch's arithmetic."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.config.settings import OptimizerConfig, ScheduleConfig
from jaxformer.nn.precision import wide_dtype
from jaxformer.parallel.mesh import traced_for
from jaxformer.pytree import layer_shapes, map_named
from jaxformer.training.schedules import Schedule, make_schedule
from jaxformer.validation.inputs import check_config

CLIP_EPSILON = 1e-6
"""Epsilon of torch.nn.utils.clip_grad_norm_, which divides by norm + 1e-6."""
CHUNK = 2**15
"""Numbers whose squares are summed at once: a chunk that a processor's cache holds."""

Which = Callable[[str, tuple[int, ...]], bool]
"""Function which(name, shape): True if a parameter is selected; the shape is without the layer axis."""


def make_optimizer(
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig | Schedule,
    *,
    decayed: Which | None = None,
    frozen: Which | None = None,
) -> optax.GradientTransformation:
    """Clip, then SGD, Adam or AdamW as torch.optim defines them, with rate learning_rate * schedule(step).

    `decayed` selects the parameters that decay, where `optimizer.decay` cannot. `frozen` ones stay as they are: no step, no
    decay, and no part in the norm that is clipped.
    """
    check_config(optimizer, OptimizerConfig, name="optimizer")
    factor = make_schedule(schedule)
    made = optax.chain(
        clip(optimizer.clip_norm) if optimizer.clip_norm is not None else optax.identity(),
        *DIRECTIONS[optimizer.name](optimizer, decay(optimizer, decayed or DECAYED[optimizer.decayed])),
        optax.scale_by_learning_rate(lambda step: optimizer.learning_rate * factor(step)),
    )
    if frozen is None:
        return made
    without_norm = optax.GradientTransformation(made.init, made.update)  # a given norm would be that of all parameters
    return optax.chain(hold(frozen), without_norm, hold(frozen))


def gradient_norm(gradient: PyTree) -> Float[Array, ""]:
    """L2 norm over all leaves, one after the other: XLA would hold the squares of all at once."""
    total = jnp.zeros(())
    for leaf in jax.tree.leaves(gradient):
        leaf, total = jax.lax.optimization_barrier((leaf, total))
        total = total + sum_of_squares(leaf)
    return jnp.sqrt(total)


def sum_of_squares(x: Float[Array, "..."]) -> Float[Array, ""]:
    """Sum the squares of all numbers, on a CPU chunk by chunk: whole, XLA writes them first, and takes four times as long."""

    def whole(x: Float[Array, "..."]) -> Float[Array, ""]:
        return jnp.square(x).sum()

    if x.size <= CHUNK or traced_for() is not None:  # on a mesh, chunks would be gathered on every device
        return whole(x)
    return jax.lax.platform_dependent(x, cpu=chunked_sum_of_squares, default=whole)


def chunked_sum_of_squares(x: Float[Array, "..."]) -> Float[Array, ""]:
    """Sum the squares of CHUNK numbers at a time, each chunk's by a product with itself."""
    flat, wide = x.reshape(-1), wide_dtype(x.dtype)
    chunks = flat.size // CHUNK

    def squares(part: Float[Array, " n"]) -> Float[Array, ""]:
        return jnp.vdot(part, part, preferred_element_type=wide)

    def add(i: Int[Array, ""], total: Float[Array, ""]) -> Float[Array, ""]:
        return total + squares(jax.lax.dynamic_slice(flat, (i * CHUNK,), (CHUNK,)))

    return jax.lax.fori_loop(0, chunks, add, squares(flat[chunks * CHUNK :])).astype(x.dtype)


def clip(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """Scale the gradient by min(1, max_norm / (norm + 1e-6)); `norm` is that of the gradient, where it is known."""

    def update(updates: PyTree, state: Any, params: PyTree | None = None, *, norm: Array | None = None, **_: Any) -> Any:
        scale = jnp.minimum(1.0, max_norm / ((gradient_norm(updates) if norm is None else norm) + CLIP_EPSILON))
        return jax.tree.map(lambda g: g * scale.astype(g.dtype), updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def hold(frozen: Which) -> optax.GradientTransformation:
    """Zero the updates of every frozen parameter."""

    def held(updates: PyTree, params: PyTree | None) -> PyTree:
        return jax.tree.map(lambda still, u: jnp.zeros_like(u) if still else u, chosen(frozen, updates), updates)

    return optax.stateless(held)


def decay(config: OptimizerConfig, decayed: Which) -> optax.GradientTransformation:
    """Add weight_decay * parameter."""
    return optax.add_decayed_weights(config.weight_decay, mask=lambda params: chosen(decayed, params))


def chosen(which: Which, tree: PyTree) -> PyTree:
    """Return True for selected parameters, False for the others."""
    shapes = layer_shapes(tree)
    return map_named(lambda name, _: bool(which(name, shapes[name])), tree)


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """True for a parameter of two axes or more that is not a bias: a bias per head has two axes as well."""
    return len(shape) >= 2 and name.rpartition(".")[2] != "bias"


DECAYED: dict[str, Which] = {"matrices": is_matrix, "all": lambda name, shape: True}


def scale_by_adam(beta1: float, beta2: float, epsilon: float) -> optax.GradientTransformation:
    """mean / (sqrt(mean square) + epsilon), both bias-corrected (Kingma and Ba 2015, algorithm 1).

    Same state and result as optax's, except for the correction: optax computes 1 - beta^t in the model's float32.
    """

    def update(updates: PyTree, state: Any, params: PyTree | None = None) -> tuple[PyTree, optax.ScaleByAdamState]:
        count = state.count + 1
        mean = optax.tree.update_moment(updates, state.mu, beta1, 1)
        square = optax.tree.update_moment(updates, state.nu, beta2, 2)
        first, second = bias_correction(beta1, count), bias_correction(beta2, count)

        def direction(m: Array, v: Array) -> Array:
            return m / first.astype(m.dtype) / (jnp.sqrt(v / second.astype(v.dtype)) + epsilon)

        return jax.tree.map(direction, mean, square), optax.ScaleByAdamState(count, mean, square)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def bias_correction(beta: float, count: Int[Array, ""]) -> Float[Array, ""]:
    """Return 1 - beta^count: in float32 beta is rounded, and for 0.999 the plain difference has a relative error of 1e-5."""
    return -jnp.expm1(count * jnp.asarray(math.log(beta) if beta else -math.inf, jnp.result_type(float)))


def _sgd(config: OptimizerConfig, decay: optax.GradientTransformation) -> list[optax.GradientTransformation]:
    return [decay, *([optax.trace(config.momentum)] if config.momentum else [])]


def _adam(config: OptimizerConfig, decay: optax.GradientTransformation) -> list[optax.GradientTransformation]:
    return [decay, scale_by_adam(config.beta1, config.beta2, config.epsilon)]


def _adamw(config: OptimizerConfig, decay: optax.GradientTransformation) -> list[optax.GradientTransformation]:
    return [scale_by_adam(config.beta1, config.beta2, config.epsilon), decay]


DIRECTIONS = {"sgd": _sgd, "adam": _adam, "adamw": _adamw}
