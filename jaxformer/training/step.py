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

from jaxformer.sharding.placement import along_rows, as_placed, put_batch
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
    state: TrainState,
    batch: Any,
    key: PRNGKeyArray | None,
    *,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    parts: int = 1,
) -> tuple[TrainState, Float[Array, ""]]:
    """One step down the gradient of the mean loss; the state after it, and the loss before it.

    The rows of a batch may be worked off in several `parts`, for less memory: the mean is over the whole batch all the same.
    """
    batch = along_rows(batch)
    gradient_of = whole_gradient if parts == 1 else functools.partial(gradient_in_parts, parts=parts)
    value, gradient = gradient_of(loss, state.model, batch, key)
    updates, moments = optimizer.update(gradient, state.moments, state.model)
    return as_placed(TrainState(state.step + 1, optax.apply_updates(state.model, updates), moments)), value


def whole_gradient(loss: Loss, model: PyTree, batch: Any, key: PRNGKeyArray | None) -> tuple[Float[Array, ""], PyTree]:
    """The mean loss of a batch and its gradient."""
    return jax.value_and_grad(lambda model: mean(*loss(model, batch, key)))(model)


def gradient_in_parts(
    loss: Loss, model: PyTree, batch: Any, key: PRNGKeyArray | None, *, parts: int
) -> tuple[Float[Array, ""], PyTree]:
    """The same, part after part: sums are added up and divided once, so that every target counts alike."""
    stacked = jax.tree.map(lambda leaf: jnp.asarray(leaf).reshape(parts, -1, *leaf.shape[1:]), batch)
    keys = None if key is None else jax.random.split(key, parts)

    def add(sums: PyTree, part: tuple[Any, PRNGKeyArray | None]) -> tuple[PyTree, None]:
        (total, count), gradient = jax.value_and_grad(lambda model: loss(model, along_rows(part[0]), part[1]), has_aux=True)(
            model
        )
        return jax.tree.map(jnp.add, sums, (total, count, gradient)), None

    zero = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(lambda: (*loss(model, batch, key), model))
    )
    (total, count, gradient), _ = jax.lax.scan(add, zero, (stacked, keys))
    return mean(total, count), jax.tree.map(lambda leaf: mean(leaf, count.astype(leaf.dtype)), gradient)


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


def make_shaped_train_steps(
    loss: Loss, optimizer: optax.GradientTransformation, batch: Callable[[int], Any], *, parts: int = 1
) -> Callable[[TrainState, Any, PRNGKeyArray, int | Array], tuple[TrainState, Float[Array, ""]]]:
    """As `make_train_steps`, for batches of several shapes that `batch(step)` makes on the host: one compilation a shape."""

    @functools.partial(jax.jit, donate_argnums=0)
    def one(state: TrainState, batch: Any, seed: PRNGKeyArray) -> tuple[TrainState, Float[Array, ""]]:
        _, dropout_key = step_keys(seed, state.step)
        return train_step(state, batch, dropout_key, loss=loss, optimizer=optimizer, parts=parts)

    def run(state: TrainState, data: Any, seed: PRNGKeyArray, n: int | Array) -> tuple[TrainState, Float[Array, ""]]:
        first, total = int(state.step), jnp.zeros(())
        for step in range(first, first + int(n)):
            state, value = one(state, put_batch(batch(step)), seed)
            total = total + value
        return state, total / n

    return run


def make_evaluate(loss: Loss) -> Callable[[PyTree, Any], float]:
    """evaluate(model, batches) -> the mean loss over all of them; batches are stacked along the first axis of each leaf."""

    @jax.jit
    def sums(model: PyTree, batches: Any) -> tuple[Array, Array]:
        return jax.lax.map(lambda batch: loss(model, along_rows(batch), None), batches)

    def evaluate(model: PyTree, batches: Any) -> float:
        totals, normalisers = sums(model, batches)
        return float(np.asarray(totals, np.float64).sum() / np.asarray(normalisers, np.float64).sum())

    return evaluate
