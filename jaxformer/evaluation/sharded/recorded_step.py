"""Record one train step: every module's output, the loss, every gradient, and the updated state."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from jaxformer.errors import InputError, type_of
from jaxformer.parallel.placement import along_rows, as_placed
from jaxformer.parallel.rules import Table
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, error, is_null, over, rms
from jaxformer.parity.trace.call_records import arrays_in
from jaxformer.parity.trace.call_sites import Site
from jaxformer.parity.trace.jax_hooks import RUN_ONCE, watch_jax
from jaxformer.parity.trace.transformations import written_out
from jaxformer.pytree import map_named, named_leaves
from jaxformer.runtime.environment import SCHEDULER
from jaxformer.runtime.xla_options import exact
from jaxformer.training.step import Loss, TrainState

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
