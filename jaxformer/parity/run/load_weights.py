"""A JAX model with torch's weights, in the mode and precision of a comparison: torch's `.train()` and `.double()`."""

from collections.abc import Callable, Container, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from jaxformer.convert.rules import Family, sums, to_jax
from jaxformer.parity.numerics.float64 import inputs_float64, to_float64
from jaxformer.parity.numerics.metrics import as_float64
from jaxformer.parity.record.outputs import side_by_side
from jaxformer.parity.record.reference import Call, Reference
from jaxformer.pytree import is_weight, map_named
from jaxformer.runtime.xla_options import exact


def parted(tree: PyTree, constants: Container[str] = ()) -> tuple[PyTree, PyTree]:
    """A tree of the weights, and one of all other arrays: keys, counts, and float `constants` by name. None stands in each for
    what is in the other."""

    def part(floating: bool) -> PyTree:
        return map_named(lambda name, leaf: leaf if (is_weight(leaf) and name not in constants) == floating else None, tree)

    return part(True), part(False)


def joined(floats: PyTree, rest: PyTree) -> PyTree:
    """The tree that was parted."""
    return jax.tree.map(lambda one, other: other if one is None else one, floats, rest, is_leaf=lambda leaf: leaf is None)


def load_jax(
    model: PyTree, weights: Mapping[str, np.ndarray], rules: Family, *, float64: bool, held: Container[str] = ()
) -> tuple[PyTree, PyTree]:
    """The model with these weights, in float64 if asked for: its parameters, and everything else, also what is `held` fixed;
    `joined` makes one tree of both."""
    loaded = to_jax(weights, model, rules)
    return parted(loaded64(weights, loaded, rules) if float64 else loaded, held)


def loaded64(weights: Mapping[str, np.ndarray], loaded: PyTree, rules: Family) -> PyTree:
    """A model that holds these weights, in float64: what is added up is so there (under `jax.enable_x64(True)`)."""
    model = to_float64(loaded)
    return to_jax({name: as_float64(array) for name, array in weights.items()}, model, rules) if sums(loaded, rules) else model


def float64_run(
    model: PyTree, rules: Family, reference: Reference, call: Call
) -> tuple[PyTree, Callable[[PyTree], np.ndarray]]:
    """The model with torch's weights, and a function that runs it, or a copy, on torch's inputs; for use in `jax_float64`."""
    loaded = ready(loaded64(reference.weights, to_jax(reference.weights, model, rules), rules), training=False)
    inputs = inputs_float64(reference.inputs)
    compiled = jax.jit(lambda *given: side_by_side(call(*given)), compiler_options=exact())
    return loaded, lambda model: np.asarray(compiled(model, *inputs))


def ready(model: PyTree, *, training: bool) -> PyTree:
    """An NNX module in training or inference mode, in place. Other trees have no mode."""
    if isinstance(model, nnx.Module):
        model.train() if training else model.eval()
    return model


def has_shapes_alone(tree: PyTree) -> bool:
    """Whether a model's weights are shapes without values."""
    return any(isinstance(leaf, jax.ShapeDtypeStruct) and is_weight(leaf) for leaf in jax.tree.leaves(tree))


def filled(tree: PyTree) -> PyTree:
    """The model with zeros for keys and counts that are shapes alone, as `eval_shape` leaves them: inference draws nothing."""

    def fill(leaf: Any) -> Any:
        empty = isinstance(leaf, jax.ShapeDtypeStruct) and not is_weight(leaf)
        return jnp.zeros(leaf.shape, leaf.dtype) if empty else leaf

    return jax.tree.map(fill, tree)
