"""One pure optimizer step, many of them in one dispatch, and the loss over a whole split."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxformer.training.losses import mean

Loss = Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
"""loss(model, batch, key) -> (total, normaliser); without a key there is no dropout."""
Draw = Callable[[Any, PRNGKeyArray], Any]
"""draw(data, key) -> batch, on the device."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that training carries from step to step."""

    step: Array
    """Optimizer steps taken, an int32 scalar."""
    model: PyTree
    """The model itself."""
    moments: PyTree
    """The optimizer's state."""


def train_state(model: PyTree, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), model, optimizer.init(model))


def train_step(
    state: TrainState, batch: Any, key: PRNGKeyArray | None, *, loss: Loss, optimizer: optax.GradientTransformation
) -> tuple[TrainState, Float[Array, ""]]:
    """One step down the gradient of the mean loss; the state after it, and the loss before it."""

    def mean_loss(model: PyTree) -> Float[Array, ""]:
        return mean(*loss(model, batch, key))

    value, gradient = jax.value_and_grad(mean_loss)(state.model)
    updates, moments = optimizer.update(gradient, state.moments, state.model)
    return TrainState(state.step + 1, optax.apply_updates(state.model, updates), moments), value


def step_keys(seed: PRNGKeyArray, step: Array) -> tuple[PRNGKeyArray, PRNGKeyArray]:
    """The keys of a step's batch and of its dropout: functions of (seed, step), so nothing else is saved to resume."""
    batch_key, dropout_key = jax.random.split(jax.random.fold_in(seed, step))
    return batch_key, dropout_key


def make_train_steps(
    loss: Loss, optimizer: optax.GradientTransformation, draw: Draw
) -> Callable[[TrainState, Any, PRNGKeyArray, int | Array], tuple[TrainState, Float[Array, ""]]]:
    """run(state, data, seed, n) -> (state, mean loss): n steps in one dispatch; the state given is used up.

    One compilation serves every n, and how the steps are cut into dispatches does not change the result.
    """

    @functools.partial(jax.jit, donate_argnums=0)
    def run(state: TrainState, data: Any, seed: PRNGKeyArray, n: int | Int[Array, ""]) -> tuple[TrainState, Float[Array, ""]]:
        def one(_: Array, carry: tuple[TrainState, Array]) -> tuple[TrainState, Array]:
            state, total = carry
            batch_key, dropout_key = step_keys(seed, state.step)
            state, value = train_step(state, draw(data, batch_key), dropout_key, loss=loss, optimizer=optimizer)
            return state, total + value

        state, total = jax.lax.fori_loop(0, n, one, (state, jnp.zeros(())))
        return state, total / n

    return run


def make_evaluate(loss: Loss) -> Callable[[PyTree, Any], float]:
    """evaluate(model, batches) -> the mean loss over all of them; batches are stacked along the first axis of each leaf."""

    @jax.jit
    def sums(model: PyTree, batches: Any) -> tuple[Array, Array]:
        return jax.lax.map(lambda batch: loss(model, batch, None), batches)

    def evaluate(model: PyTree, batches: Any) -> float:
        totals, normalisers = sums(model, batches)
        return float(np.asarray(totals, np.float64).sum() / np.asarray(normalisers, np.float64).sum())

    return evaluate
