"""Record one train step: every module's output, the loss, every gradient, and the updated state.

Default inputs of a step: excited parameters, rows of unequal lengths, dropout, and AdamW with clipping."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from jaxformer.config.mesh import MeshConfig
from jaxformer.config.models import EncoderDecoderConfig, ModelConfig
from jaxformer.config.settings import IGNORE_INDEX, OptimizerConfig, ScheduleConfig
from jaxformer.data.batches import Windows
from jaxformer.data.tasks import Pairs
from jaxformer.errors import InputError, type_of
from jaxformer.models import GPT, EncoderDecoder, Model, abstract
from jaxformer.parallel.placement import Table, along_rows, as_placed
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, error, is_null, over, rms
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.call_records import arrays_in
from jaxformer.parity.trace.call_sites import Site
from jaxformer.parity.trace.jax_hooks import watch_jax
from jaxformer.parity.trace.programs import RUN_ONCE
from jaxformer.parity.trace.transformations import written_out
from jaxformer.pytree import is_weight, map_named, named_leaves, named_weights
from jaxformer.runtime.environment import SCHEDULER
from jaxformer.runtime.xla_options import exact
from jaxformer.training.losses import cross_entropy
from jaxformer.training.pairs import pair_loss
from jaxformer.training.step import Loss, TrainState, train_state

OPTIMIZER = OptimizerConfig(name="adamw", learning_rate=1e-3, weight_decay=0.1, clip_norm=0.1), ScheduleConfig()
LEAST_ROWS, LONGEST = 8, 16
MOMENT = 1e-3
"""Size of drawn moments, which is that of small gradients."""
COUNT = 1
"""Number of steps taken before: at step 0 a warm-up's learning rate is 0, which hides the gradient."""
PAD = 0
"""Padding id of an encoder-decoder's pairs."""


def excited(config: ModelConfig) -> Model:
    """Build a model whose parameters hide no bug."""
    return excite(abstract(config), seed=0)


def wide_state(model: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """Build the state before a step, in float64, on the host."""
    with jax.enable_x64(True):
        state = train_state(jax.tree.map(lambda leaf: jnp.asarray(leaf, np.float64), model), optimizer)
        for name, leaf in named_leaves(state.moments).items():
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                raise InputError(f"the optimizer's {name} is a random key, whose draws hide a difference; compare without it")
        state = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64 if is_weight(leaf) else None), state)
    return replace(state, step=np.full_like(state.step, COUNT), moments=drawn(state.moments, named_weights(model)))


def drawn(moments: Any, parameters: Iterable[str]) -> Any:
    """Draw positive moments of parameters, because zeros hide what is done with them, and set step counters to COUNT."""
    rng, ends = np.random.default_rng(0), tuple(f".{name}" for name in parameters)

    def fill(name: str, leaf: Any) -> Any:
        if f".{name}".endswith(".count"):
            return np.full_like(leaf, COUNT)
        is_moment = is_weight(leaf) and f".{name}".endswith(ends)
        return MOMENT * rng.uniform(0.5, 1.5, leaf.shape).astype(leaf.dtype) if is_moment else leaf

    return map_named(fill, moments)


def default_loss(model: Any) -> Loss:
    """Return the recipes' loss; InputError for a model that has none."""
    if isinstance(model, GPT):
        return next_token_loss
    if isinstance(model, EncoderDecoder):
        return partial(pair_loss, pad=PAD)
    raise InputError(f"{type_of(model)} has no loss of its own; give loss(model, batch, key) -> (sum, count), and a batch")


def next_token_loss(model: GPT, batch: Windows, key: Any) -> tuple[Any, Any]:
    """Return the cross-entropy of the next token: its sum and its count."""
    return cross_entropy(model(batch.inputs, key=key), jnp.asarray(batch.targets))


def batch_of(model: Any, mesh: MeshConfig) -> Any:
    """Return `default_batch`; InputError for a model that is not jaxformer's."""
    if isinstance(model, GPT | EncoderDecoder):
        return default_batch(model.config, mesh)
    raise InputError(f"{type_of(model)} has no batch of its own; give batch")


def default_batch(config: ModelConfig, mesh: MeshConfig) -> Any:
    """Draw random ids whose rows have unequal numbers of targets, so that no mean of shards' means is the overall mean."""
    rows, longest = mesh.rows * math.ceil(LEAST_ROWS / mesh.rows), min(LONGEST, config.context - 1)
    rng = np.random.default_rng(0)
    length = max(longest // mesh.sequence, 1) * mesh.sequence
    ids, targets = (rng.integers(1, config.vocab_size, (rows, length)).astype(np.int32) for _ in range(2))
    counted = np.arange(length) < rng.integers(2, length + 1, (rows, 1))
    if isinstance(config, EncoderDecoderConfig):
        start = np.ones((rows, 1), np.int32)
        return Pairs(np.where(counted, ids, PAD), np.concatenate([start, np.where(counted, targets, PAD)], 1))
    return Windows(ids, np.where(counted, targets, IGNORE_INDEX))


def check_weights(model: Any) -> None:
    """Raise InputError if the model holds no arrays, or leaves that no gradient trains."""
    leaves = named_leaves(model)
    if not leaves:
        raise InputError(f"model is {type_of(model)}, which holds no arrays; give a model, or its configuration")
    for name, leaf in leaves.items():
        if not hasattr(leaf, "dtype"):
            which = f"model.{name}" if name else "model"
            raise InputError(f"{which} is {type_of(leaf)}; give a model whose leaves are arrays, or its configuration")
        if not is_weight(leaf):
            raise InputError(f"model.{name} is of type {leaf.dtype}, and no gradient trains it; give a model of floats alone")


def check_rows(batch: Any, mesh: MeshConfig) -> None:
    """Raise InputError if the batch holds anything but arrays of numbers, or the mesh does not divide its rows equally."""
    for name, leaf in named_leaves(batch).items():
        which = f"batch.{name}" if name else "the batch"
        kind = getattr(leaf, "dtype", None)
        if kind is None or not np.ndim(leaf) or not (jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, np.bool_)):
            is_what = type_of(leaf) if kind is None else f"an array of {kind} with {np.ndim(leaf)} axes"
            raise InputError(f"{which} is {is_what}; give arrays of numbers, whose first axis is that of rows")
        rows = np.shape(leaf)[0]
        if rows % mesh.rows:
            raise InputError(
                f"{which} has {rows} rows, which data x fsdp = {mesh.data} x {mesh.fsdp} of the mesh does not divide; "
                f"give a multiple of {mesh.rows}"
            )


Step = Callable[[TrainState, Any, PRNGKeyArray | None], tuple[TrainState, Array]]
"""Function step(state, batch, key) -> (state, mean loss)."""
STEP = "step(state, batch, key) -> (TrainState, mean loss)"
Arrays = dict[str, Any]


class Recorded(NamedTuple):
    """Arrays that one step computed, by name, in the order of computation."""

    activations: Arrays
    loss: Arrays
    gradients: Arrays
    updates: Arrays
    """Train state after the step."""


STAGES = Recorded._fields


class _Outputs:
    """Record the outputs of calls."""

    def __init__(self) -> None:
        self.found: Arrays = {}

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        for i, array in enumerate(arrays_in(output)):
            # numbered, because a compiled program returns a dict sorted by key
            self.found[f"{len(self.found):05} {site}{f' output {i}' if i else ''}"] = array
        return output


def recorded_step(
    state: TrainState,
    batch: Any,
    key: PRNGKeyArray | None,
    *,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    rules: Table,
) -> Recorded:
    """Take the step of `train_step`, written out so that every call is recorded. An empty batch has a non-finite loss."""

    def seen_loss(model: PyTree, batch: Any, key: PRNGKeyArray | None) -> tuple[Array, Arrays]:
        outputs = _Outputs()
        with watch_jax(model, outputs):
            total, count = sum_and_count(loss(model, batch, key))
        return total / count, outputs.found

    with written_out():
        batch = along_rows(batch)
        of = jax.value_and_grad(seen_loss, has_aux=True)
        (value, activations), gradient = of(state.model, batch, key)
        updates, moments = optimizer.update(gradient, state.moments, state.model)
        after = as_placed(TrainState(state.step + 1, optax.apply_updates(state.model, updates), moments), rules)
    return Recorded(activations, {"loss": value}, named_leaves(as_placed(gradient, rules)), named_leaves(after))


def sum_and_count(given: Any) -> tuple[Array, Array]:
    """Check and return the result of a loss function; InputError if it is not (sum, count)."""
    if isinstance(given, tuple) and len(given) == 2 and all(np.shape(each) == () for each in given):
        return given
    raise InputError(f"loss gives {described(given)}; give loss(model, batch, key) -> (sum, count), two numbers")


def state_and_loss(given: Any) -> tuple[TrainState, Array]:
    """Check and return the result of a user's own step; InputError if it is not (state, loss)."""
    match given:
        case (TrainState() as state, jax.Array() as value):
            for name, leaf in named_leaves(state).items():
                if not isinstance(leaf, jax.Array):
                    raise InputError(f"step gives {name} as {described(leaf)}; give a jax array, as the mesh holds it")
            return state, value
    raise InputError(f"step gives {described(given)}; give {STEP}, the loss as a jax array")


def described(given: Any) -> str:
    """Describe a function's result for people."""
    if isinstance(given, tuple):
        return f"({', '.join(type(each).__name__ for each in given)})"
    return "None" if given is None else type_of(given)


def run(step: Callable[..., Any], *given: Any) -> Any:
    """Run step(*given), compiled quickly because it runs once."""
    return jax.block_until_ready(jax.jit(step, compiler_options=exact({**RUN_ONCE, SCHEDULER: False}))(*given))


def copies(array: Any) -> list[tuple[Any, np.ndarray]]:
    """Return the index and the data of each shard of a jax array that this process holds."""
    return [(shard.index, np.asarray(shard.data)) for shard in array.addressable_shards]


SEEN = 1e-3
"""Fraction of a gradient whose effect on the state must exceed the tolerance."""


def decided_by_rounding(state: TrainState, optimizer: optax.GradientTransformation, reference: Recorded) -> list[str]:
    """Return updated leaves that change if null gradients are set to 0.

    An optimizer that divides a gradient by its size, or takes its sign, turns pure rounding into an update.
    """
    null = null_names(reference)
    if not null:
        return []
    after = without_gradients(state, optimizer, reference, null)
    return [name for name, leaf in after.items() if over(error(leaf, reference.updates[name]), "parameter")]


def null_names(reference: Recorded) -> list[str]:
    """Return parameters whose gradients are rounding noise around zero."""
    noise = NULL_GRADIENT * rms(reference.gradients.values())
    return [name for name, array in reference.gradients.items() if is_null(array, array, noise)]


def traces(state: TrainState, optimizer: optax.GradientTransformation, reference: Recorded) -> list[str]:
    """Return updated leaves in which a thousandth of the gradients would be noticed.

    If an optimizer ignores gradients, or almost does, the state does not show whether they are wrong.
    """
    after = without_gradients(state, optimizer, reference, reference.gradients)
    return [name for name, leaf in after.items() if SEEN * error(leaf, reference.updates[name]).off("parameter") > 1]


def untraced(seen: Iterable[str], reference: Recorded) -> list[str]:
    """Return parameters with a gradient that shows neither in themselves nor in their moments."""
    silent, leaves = {*null_names(reference)}, [f".{leaf}" for leaf in seen]
    return [
        name for name in reference.gradients if name not in silent and not any(leaf.endswith(f".{name}") for leaf in leaves)
    ]


def without_gradients(
    state: TrainState, optimizer: optax.GradientTransformation, reference: Recorded, zero: Collection[str]
) -> Mapping[str, Any]:
    """Return the compared leaves of the updated state, computed with the given gradients set to 0."""
    gradient = map_named(lambda name, _: reference.gradients[name] * (name not in zero), state.model)

    def update(state: TrainState, gradient: Any) -> TrainState:
        updates, moments = optimizer.update(gradient, state.moments, state.model)
        return replace(state, step=state.step + 1, model=optax.apply_updates(state.model, updates), moments=moments)

    with jax_float64():
        after = named_leaves(run(update, state, gradient))
    return {name: leaf for name, leaf in after.items() if name in reference.updates}
