"""What the state after a step owes to its gradient: on one device, the optimizer runs once more with another gradient."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import optax

from jaxformer.distributed.recorded_step import Recorded, run
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, error, is_null, over, rms
from jaxformer.pytree import map_named, named_leaves
from jaxformer.training.step import TrainState

SEEN = 1e-3
"""The part of a gradient whose trace in the state has to be over the tolerance."""


def decided_by_rounding(state: TrainState, optimizer: optax.GradientTransformation, reference: Recorded) -> list[str]:
    """Leaves of the state after the step that differ where null gradients are 0: an optimizer that divides a gradient by its
    size, or takes its sign, makes an update of mere rounding."""
    null = null_names(reference)
    if not null:
        return []
    after = without_gradients(state, optimizer, reference, null)
    return [name for name, leaf in after.items() if over(error(leaf, reference.updates[name]), "parameter")]


def null_names(reference: Recorded) -> list[str]:
    """Parameters whose gradients are rounding around zero."""
    noise = NULL_GRADIENT * rms(reference.gradients.values())
    return [name for name, array in reference.gradients.items() if is_null(array, array, noise)]


def traces(state: TrainState, optimizer: optax.GradientTransformation, reference: Recorded) -> list[str]:
    """Leaves of the state after the step in which a thousandth of the gradients would be seen. Where an optimizer ignores them,
    or takes almost nothing of them, the state is the same behind wrong ones."""
    after = without_gradients(state, optimizer, reference, reference.gradients)
    return [name for name, leaf in after.items() if SEEN * error(leaf, reference.updates[name]).off("parameter") > 1]


def untraced(seen: Iterable[str], reference: Recorded) -> list[str]:
    """Parameters with a gradient that neither they nor their moments show."""
    silent, leaves = {*null_names(reference)}, [f".{leaf}" for leaf in seen]
    return [
        name for name in reference.gradients if name not in silent and not any(leaf.endswith(f".{name}") for leaf in leaves)
    ]


def without_gradients(
    state: TrainState, optimizer: optax.GradientTransformation, reference: Recorded, zero: Collection[str]
) -> Mapping[str, Any]:
    """The leaves of the state after the step that are compared, where these gradients are 0."""
    gradient = map_named(lambda name, _: reference.gradients[name] * (name not in zero), state.model)

    def update(state: TrainState, gradient: Any) -> TrainState:
        updates, moments = optimizer.update(gradient, state.moments, state.model)
        return replace(state, step=state.step + 1, model=optax.apply_updates(state.model, updates), moments=moments)

    with jax_float64():
        after = named_leaves(run(update, state, gradient))
    return {name: leaf for name, leaf in after.items() if name in reference.updates}
