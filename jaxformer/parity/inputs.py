"""Parameters and inputs that leave no bug unseen.

A model initialised the usual way hides dropped biases and gains at any tolerance: its biases are 0 and its gains 1.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.nn.tree import is_weight, map_named


def excite(tree: PyTree, seed: int) -> PyTree:
    """The same model with gains 1 + 0.3 n, biases 0.3 n, tables 0.5 n and matrices n / sqrt(fan_in), all float32."""
    rng = np.random.default_rng(seed)

    def fill(name: str, leaf: jax.Array) -> jax.Array:
        noise = rng.standard_normal(leaf.shape)
        leaf_kind = name.rsplit(".", 1)[-1]
        fan_in = leaf.shape[-2] if leaf_kind == "kernel" else 1
        value = {"scale": 1 + 0.3 * noise, "bias": 0.3 * noise, "table": 0.5 * noise, "kernel": noise / math.sqrt(fan_in)}[
            leaf_kind
        ]
        return jnp.asarray(value, jnp.float32)

    return map_named(fill, tree)


def widen(tree: PyTree) -> PyTree:
    """Every float leaf as float64 (under `jax.enable_x64(True)`)."""
    return cast(tree, jnp.float64)


def cast(tree: PyTree, dtype: Any) -> PyTree:
    """Every float leaf in another type."""
    leaves, restore = floating(tree)
    return restore([jnp.asarray(leaf, dtype) for leaf in leaves])


def floating(tree: PyTree) -> tuple[list[Any], Callable[[list[Any]], PyTree]]:
    """The float leaves, and what puts others in their place: a user's model may hold keys and counters too."""
    leaves, structure = jax.tree.flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if is_weight(leaf)]

    def restore(floats: list[Any]) -> PyTree:
        whole = list(leaves)
        for i, leaf in zip(places, floats, strict=True):
            whole[i] = leaf
        return jax.tree.unflatten(structure, whole)

    return [leaves[i] for i in places], restore


def hostile_tokens(vocab_size: int, batch: int, length: int, seed: int, pad: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids `B T` and which of them are real: padding on the right, on the left and (last row) everywhere, ids repeated,
    and the padding id inside the text."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, vocab_size, (batch, length)).astype(np.int32)
    ids[:, length // 2] = pad
    ids[:, length // 2 + 1] = ids[:, length // 2 - 1]
    valid = np.ones((batch, length), bool)
    valid[1 % batch, -(length // 4) :] = False
    valid[2 % batch, : length // 4] = False
    valid[-1] = False
    return np.where(valid, ids, pad).astype(np.int32), valid
