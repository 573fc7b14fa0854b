"""One train step with all that it computes on the way: every module's output, the loss, every gradient, the state after it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from jaxformer.collectives import SCHEDULER
from jaxformer.errors import InputError, type_of
from jaxformer.parity.capture.call_records import arrays_in
from jaxformer.parity.capture.call_sites import Site
from jaxformer.parity.capture.jax_hooks import RUN_ONCE, watch_jax
from jaxformer.parity.capture.written_out import written_out
from jaxformer.pytree import named_leaves
from jaxformer.runtime.xla_options import exact
from jaxformer.sharding.placement import along_rows, as_placed
from jaxformer.sharding.rules import Table
from jaxformer.training.step import Loss, TrainState

Step = Callable[[TrainState, Any, PRNGKeyArray | None], tuple[TrainState, Array]]
"""step(state, batch, key) -> (state, mean loss)."""
STEP = "step(state, batch, key) -> (TrainState, mean loss)"
Arrays = dict[str, Any]


class Recorded(NamedTuple):
    """What one step computed, by names, in the order in which it was computed."""

    activations: Arrays
    loss: Arrays
    gradients: Arrays
    updates: Arrays
    """The train state after the step."""


STAGES = Recorded._fields


class _Outputs:
    """Keeps what calls give."""

    def __init__(self) -> None:
        self.found: Arrays = {}

    def enter(self, site: Site, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        return arguments

    def leave(self, site: Site, output: Any) -> Any:
        for i, array in enumerate(arrays_in(output)):
            # numbered, for a compiled program returns a dict in the order of its keys
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
    """The step of `train_step`, written out, so that every call in it can be seen. A loss over nothing is not finite here."""

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
    """What a loss function gives; InputError for anything else."""
    if isinstance(given, tuple) and len(given) == 2 and all(np.shape(each) == () for each in given):
        return given
    raise InputError(f"loss gives {described(given)}; give loss(model, batch, key) -> (sum, count), two numbers")


def state_and_loss(given: Any) -> tuple[TrainState, Array]:
    """What a user's own step gives; InputError for anything else."""
    match given:
        case (TrainState() as state, jax.Array() as value):
            for name, leaf in named_leaves(state).items():
                if not isinstance(leaf, jax.Array):
                    raise InputError(f"step gives {name} as {described(leaf)}; give a jax array, as the mesh holds it")
            return state, value
    raise InputError(f"step gives {described(given)}; give {STEP}, the loss as a jax array")


def described(given: Any) -> str:
    """What a function gave, for a person."""
    if isinstance(given, tuple):
        return f"({', '.join(type(each).__name__ for each in given)})"
    return "None" if given is None else type_of(given)


def run(step: Callable[..., Any], *given: Any) -> Any:
    """step(*given), compiled in little time, for it runs once."""
    return jax.block_until_ready(jax.jit(step, compiler_options=exact({**RUN_ONCE, SCHEDULER: False}))(*given))


def copies(array: Any) -> list[tuple[Any, np.ndarray]]:
    """What each device of this process holds of a jax array, and at which place of it."""
    return [(shard.index, np.asarray(shard.data)) for shard in array.addressable_shards]
