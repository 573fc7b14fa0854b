"""Parameters by name, as 'stack.blocks.attention.query.kernel': jax's counterpart of torch's `state_dict`."""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

STACKED = "blocks."
"""Path part under which every leaf has a leading layer axis."""


def path_name(path: tuple[Any, ...]) -> str:
    """Return the dotted name of a leaf, without the `.value` of flax's variables."""
    return dotted(jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value"))


def dotted(name: str) -> str:
    """Return a Haiku name with dots: 'mlp.linear' for 'mlp/linear' and for 'mlp/~/linear'."""
    return name.replace("/~/", ".").replace("/", ".")


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Return every leaf by its name, in tree order."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def named_weights(tree: PyTree) -> dict[str, Any]:
    """Return every float leaf by its name: other leaves of a user's module, as keys and counters, are no weights."""
    return {name: leaf for name, leaf in named_leaves(tree).items() if is_weight(leaf)}


def is_weight(leaf: Any) -> bool:
    """True if a leaf holds floats."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def map_named(f: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """Apply f(name, leaf, ...) to every leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, *leaves: f(path_name(path), *leaves), tree, *rest)


def is_stacked(name: str) -> bool:
    """True if a leaf of this name has a leading layer axis; leaves of a list of blocks ('blocks.0.') have none."""
    return re.search(rf"\b{STACKED}(?!\d)", name) is not None


def is_apart(leaf: Any) -> bool:
    """True if a leaf of all layers is a tuple with an array per layer, and not one array with a layer axis."""
    return isinstance(leaf, tuple)


def layer_of(tree: PyTree, i: int) -> PyTree:
    """Select the leaves of layer i."""
    return jax.tree.map(lambda leaf: leaf[i], tree, is_leaf=is_apart)


def take_layers_apart(tree: PyTree, of_layer: Callable[[str, Any], Any] = lambda name, leaf: leaf) -> PyTree:
    """Return the model with an array per layer instead of stacked arrays, of which a loop would copy a slice each time, or with
    what `of_layer(name, array)` makes of it."""

    def apart(name: str, leaf: Any) -> Any:
        return tuple(of_layer(name, each) for each in leaf) if is_stacked(name) else leaf

    return jax.lax.optimization_barrier(map_named(apart, tree))


def layer_shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """Return every leaf's shape without the layer axis."""
    leaves = named_leaves(tree).items()
    return {name: leaf.shape[1:] if is_stacked(name) else leaf.shape for name, leaf in leaves}


def n_bytes(tree: PyTree) -> int:
    """Number of bytes of all arrays, or of all leaves that have a size and a dtype (`jax.ShapeDtypeStruct`)."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def count_parameters(tree: PyTree, *, embeddings: bool = True) -> int:
    """Number of parameters; without `embeddings`, token and position tables are not counted."""
    leaves = named_leaves(tree).items()
    return sum(math.prod(leaf.shape) for name, leaf in leaves if embeddings or not name.endswith(".table"))
