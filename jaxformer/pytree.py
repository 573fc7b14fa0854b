"""Parameters by name: 'stack.blocks.attention.query.kernel'. The twin has torch's state_dict."""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

STACKED = "blocks."
"""A leaf under a path part of this name carries a leading layer axis."""


def path_name(path: tuple[Any, ...]) -> str:
    """The dotted name of a leaf, without the `.value` of flax's variables."""
    return dotted(jax.tree_util.keystr(path, simple=True, separator=".").removesuffix(".value"))


def dotted(name: str) -> str:
    """'mlp.linear' for 'mlp/linear', and for 'mlp/~/linear', as Haiku says it."""
    return name.replace("/~/", ".").replace("/", ".")


def named_leaves(tree: PyTree) -> dict[str, Any]:
    """Every leaf by its name, in tree order."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def named_weights(tree: PyTree) -> dict[str, Any]:
    """Every float leaf by its name: a user's module may hold keys and counters too, which are no weights."""
    return {name: leaf for name, leaf in named_leaves(tree).items() if is_weight(leaf)}


def is_weight(leaf: Any) -> bool:
    """Whether a leaf holds floats."""
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def map_named(f: Callable[..., Any], tree: PyTree, *rest: PyTree) -> PyTree:
    """f(name, leaf, ...) on every leaf."""
    return jax.tree_util.tree_map_with_path(lambda path, *leaves: f(path_name(path), *leaves), tree, *rest)


def is_stacked(name: str) -> bool:
    """Whether a leaf of this name carries a leading layer axis, which a list of blocks, 'blocks.0', has not."""
    return re.search(rf"\b{STACKED}(?!\d)", name) is not None


def layer_shapes(tree: PyTree) -> dict[str, tuple[int, ...]]:
    """Every leaf's shape without the layer axis."""
    leaves = named_leaves(tree).items()
    return {name: leaf.shape[1:] if is_stacked(name) else leaf.shape for name, leaf in leaves}


def n_bytes(tree: PyTree) -> int:
    """Bytes of all arrays, or of what has their shape and type."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def count_parameters(tree: PyTree, *, embeddings: bool = True) -> int:
    """Number of parameters; without `embeddings`, the token and position tables are left out."""
    leaves = named_leaves(tree).items()
    return sum(math.prod(leaf.shape) for name, leaf in leaves if embeddings or not name.endswith(".table"))
