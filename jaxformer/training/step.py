"""One pure optimizer step, many in one dispatch, in float32 or with bfloat16 products, and the loss over a whole split."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from jaxformer.config.settings import Precision
from jaxformer.parallel.group import run_together
from jaxformer.parallel.placement import along_rows, as_placed, on_host, put_batch
from jaxformer.parity.trace.jax_hooks import tap
from jaxformer.pytree import map_named, named_leaves
from jaxformer.runtime.jit import jit
from jaxformer.training.health import MOST_IN_A_ROW, Health, healthy
from jaxformer.training.losses import mean
from jaxformer.training.norms import GRADIENT, module_norms
from jaxformer.training.optimizers import gradient_norm

Loss = Callable[..., tuple[Float[Array, ""], Float[Array, ""]]]
"""Function loss(model, batch, key) -> (total, normaliser); without a key there is no dropout."""
Draw = Callable[[Any, PRNGKeyArray], Any]
"""Function draw(data, key) -> batch, on the device."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """State that training carries from step to step."""

    step: Any
    """Number of optimizer steps taken or skipped, an int32 scalar, on the device or the host."""
    model: PyTree
    """Model being trained."""
    moments: PyTree
    """State of the optimizer."""
    health: Health = field(default_factory=healthy)
    """Counts of skipped steps and loss spikes."""


def train_state(model: PyTree, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the state before the first step."""
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
    """Take one step down the gradient of the mean loss; return the state after it, and the loss before it.

    If the loss or the gradient's norm is not finite, the step is skipped: weights and moments stay as they are. The rows of a
    batch may be processed in several `parts`, for less memory: the mean is still over the whole batch.
    """
    batch = along_rows(batch)
    gradient_of = whole_gradient if parts == 1 else functools.partial(gradient_in_parts, parts=parts)
    value, gradient = gradient_of(loss, state.model, batch, key)
    gradient = tap(GRADIENT, gradient)
    norm = gradient_norm(gradient)

    def update(model: PyTree, moments: PyTree) -> tuple[PyTree, PyTree]:
        updates, moments = optax.with_extra_args_support(optimizer).update(gradient, moments, model, norm=norm)
        return optax.apply_updates(model, updates), moments

    is_finite = jnp.isfinite(value) & jnp.isfinite(norm)
    model, moments = jax.lax.cond(is_finite, update, lambda *same: same, state.model, state.moments)
    return as_placed(TrainState(state.step + 1, model, moments, state.health.after(state.step, value, is_finite))), value


def step_in_run(state: TrainState, total: Array, *batch: Any, **how: Any) -> tuple[TrainState, Array]:
    """Take a step and sum the losses of all steps taken; after too many skipped steps the state no longer changes."""

    def taken(state: TrainState, total: Array) -> tuple[TrainState, Array]:
        after, value = train_step(state, *batch, **how)
        return after, total + jnp.where(after.health.in_a_row == 0, value, 0)

    return jax.lax.cond(state.health.in_a_row < MOST_IN_A_ROW, taken, lambda *same: same, state, total)


def whole_gradient(loss: Loss, model: PyTree, batch: Any, key: PRNGKeyArray | None) -> tuple[Float[Array, ""], PyTree]:
    """Return the mean loss of a batch and its gradient."""
    return jax.value_and_grad(lambda model: mean(*loss(model, batch, key)))(model)


def gradient_in_parts(
    loss: Loss, model: PyTree, batch: Any, key: PRNGKeyArray | None, *, parts: int
) -> tuple[Float[Array, ""], PyTree]:
    """Return the mean loss and its gradient, part by part: sums are divided once, so that all targets count alike."""
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
    """Return the keys of a step's batch and of its dropout: functions of (seed, step), so nothing else is saved to resume."""
    batch_key, dropout_key = jax.random.split(jax.random.fold_in(seed, step))
    return batch_key, dropout_key


@dataclass(frozen=True)
class TrainSteps:
    """Steps of a run: steps(state, data, seed, n) -> (state, mean loss); the given state is donated.

    The mean is over the steps that were taken, NaN if none was. The division of steps into dispatches does not change the
    result. After MOST_IN_A_ROW skipped steps the state no longer changes.
    """

    run: Callable[[TrainState, Any, PRNGKeyArray, int | Array], tuple[TrainState, Float[Array, ""]]]
    batch: Callable[[Any, PRNGKeyArray, int], Any]
    """Function batch(data, seed, step) -> the batch of that step."""
    loss: Loss
    step: Callable[[TrainState, Any, PRNGKeyArray], tuple[TrainState, Float[Array, ""]]]
    """Pure function step(state, source, seed) -> the state after one step, and its loss."""
    source: Callable[[Any, int], Any]
    """Function source(data, step) -> what that step reads, on the device: the data that it draws from, or its batch."""

    def __call__(self, state: TrainState, data: Any, seed: PRNGKeyArray, n: int | Array) -> tuple[TrainState, Array]:
        return self.run(state, data, seed, n)

    def examine(self, data: Any, seed: PRNGKeyArray, model: PyTree, step: int) -> tuple[Any, dict[str, float]]:
        """Return the batch of a step, its loss, and the norm of each module's gradient."""
        batch = self.batch(data, seed, step)
        _, dropout_key = step_keys(seed, jnp.int32(step))
        value, gradient = jit(functools.partial(whole_gradient, self.loss))(model, batch, dropout_key)
        norms = module_norms(GRADIENT, named_leaves(gradient))
        norms = {series.removeprefix(f"{GRADIENT}/"): float(norm) for series, norm in norms.items()}
        return batch, {"loss": float(value), **norms}


def make_train_steps(loss: Loss, optimizer: optax.GradientTransformation, draw: Draw) -> TrainSteps:
    """Build steps of which n run in one dispatch; one compilation serves every n."""

    @functools.partial(jit, donate_argnums=0)
    def run(state: TrainState, data: Any, seed: PRNGKeyArray, n: int | Int[Array, ""]) -> tuple[TrainState, Array]:
        def one(_: Array, carry: tuple[TrainState, Array]) -> tuple[TrainState, Array]:
            batch_key, dropout_key = step_keys(seed, carry[0].step)
            return step_in_run(*carry, draw(data, batch_key), dropout_key, loss=loss, optimizer=optimizer)

        taken = state.health.taken
        state, total = jax.lax.fori_loop(0, n, one, (state, jnp.zeros(())))
        return state, total / (state.health.taken - taken)

    def batch(data: Any, seed: PRNGKeyArray, step: int) -> Any:
        return draw(data, step_keys(seed, jnp.int32(step))[0])

    def step(state: TrainState, data: Any, seed: PRNGKeyArray) -> tuple[TrainState, Array]:
        batch_key, dropout_key = step_keys(seed, state.step)
        return train_step(state, draw(data, batch_key), dropout_key, loss=loss, optimizer=optimizer)

    return TrainSteps(functools.partial(run_together, run), batch, loss, step, lambda data, step: data)


def make_shaped_train_steps(
    loss: Loss, optimizer: optax.GradientTransformation, batch: Callable[[int], Any], *, parts: int = 1
) -> TrainSteps:
    """Build steps as `make_train_steps`, for batches that `batch(step)` makes on the host: one compilation per shape."""

    @functools.partial(jit, donate_argnums=0)
    def one(state: TrainState, total: Array, batch: Any, seed: PRNGKeyArray) -> tuple[TrainState, Array]:
        dropout_key = step_keys(seed, state.step)[1]
        return step_in_run(state, total, batch, dropout_key, loss=loss, optimizer=optimizer, parts=parts)

    def run(state: TrainState, data: Any, seed: PRNGKeyArray, n: int | Array) -> tuple[TrainState, Array]:
        first, taken, total = int(state.step), int(state.health.taken), jnp.zeros(())
        for step in range(first, first + int(n)):
            state, total = run_together(one, state, total, put_batch(batch(step)), seed)
        return state, total / (state.health.taken - taken)

    def step(state: TrainState, batch: Any, seed: PRNGKeyArray) -> tuple[TrainState, Array]:
        return train_step(state, batch, step_keys(seed, state.step)[1], loss=loss, optimizer=optimizer, parts=parts)

    return TrainSteps(run, lambda data, seed, step: batch(step), loss, step, lambda data, step: put_batch(batch(step)))


def make_evaluate(loss: Loss) -> Callable[[PyTree, Any], float]:
    """Return evaluate(model, batches) -> the mean loss; batches are stacked along the first axis of each leaf."""

    @jit
    def sums(model: PyTree, batches: Any) -> tuple[Array, Array]:
        return jax.lax.map(lambda batch: loss(model, along_rows(batch), None), batches)

    def evaluate(model: PyTree, batches: Any) -> float:
        totals, normalisers = run_together(sums, model, batches)
        return float(on_host(totals).astype(np.float64).sum() / on_host(normalisers).astype(np.float64).sum())

    return evaluate


def in_bfloat16(loss: Loss) -> Loss:
    """Return the loss of a model whose linear layers compute in bfloat16.

    Parameters stay float32, and so do their gradients, which autodiff casts back: sums over parts of a batch and the
    optimizer's moments are float32 too. Embeddings, residual connections, norms, softmax and the loss itself are float32 as
    before.
    """

    def lowered(model: PyTree, batch: Any, key: PRNGKeyArray | None) -> tuple[Float[Array, ""], Float[Array, ""]]:
        return loss(cast_linear(model), batch, key)

    return lowered


def cast_linear(model: PyTree) -> PyTree:
    """Return the model with its kernels in bfloat16; a tied head gets the table as a kernel of its own."""

    def cast(name: str, leaf: Array) -> Array:
        return leaf.astype(jnp.bfloat16) if name.endswith(".kernel") else leaf

    model = map_named(cast, model)
    if getattr(model.config, "tied", False):
        model.head.kernel = nnx.data(nnx.Param(model.embed.token.table[...].T.astype(jnp.bfloat16)))
    return model


PRECISIONS: dict[Precision, Callable[[Loss], Loss]] = {"float32": lambda loss: loss, "bf16": in_bfloat16}
