"""A JAX model with torch's weights, in the mode and width of a comparison: what torch has as `.train()` and `.double()`."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from jaxformer.convert.rules import Family, to_jax
from jaxformer.nn.tree import is_weight


def parted(tree: PyTree) -> tuple[PyTree, PyTree]:
    """The float arrays, and all others: keys and counts that flax keeps in a module; None stands for what is in the other."""

    def part(floating: bool) -> PyTree:
        return jax.tree.map(lambda leaf: leaf if is_weight(leaf) == floating else None, tree)

    return part(True), part(False)


def joined(floats: PyTree, rest: PyTree) -> PyTree:
    """What was parted."""
    return jax.tree.map(lambda one, other: other if one is None else one, floats, rest, is_leaf=lambda leaf: leaf is None)


def load_jax(model: PyTree, weights: Mapping[str, np.ndarray], rules: Family, *, wide: bool) -> tuple[PyTree, PyTree]:
    """The model's parameters with these weights, widened to float64 or not, and the rest of it: `joined` makes it whole."""
    floats, rest = parted(model)
    loaded = to_jax(weights, floats, rules)
    if wide:
        loaded = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, np.float64)), loaded)  # on the host: nothing compiles
    return loaded, rest


def ready(model: PyTree, *, training: bool) -> PyTree:
    """An NNX module in its mode, in place. Other trees have none; the functions that use them have."""
    if isinstance(model, nnx.Module):
        model.train() if training else model.eval()
    return model
