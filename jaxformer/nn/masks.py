"""Attention masks: boolean, True = may attend, of rank 4, `B N|1 T S` with 1 where an axis is shared."""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxformer.validation.arrays import as_array, check_not_torch
from jaxformer.validation.inputs import check_valid

Mask = Bool[Array, "#B #N #T #S"]


def causal_mask(queries: int, keys: int | None = None, offset: int | Int[Array, ""] = 0) -> Bool[Array, "1 1 T S"]:
    """Causal mask: query t, at position t + offset, sees the keys up to that position.

    causal_mask(3)        causal_mask(2, 4, offset=1)
    1 . .                 1 1 . .
    1 1 .                 1 1 1 .
    1 1 1
    """
    keys = queries if keys is None else keys
    last = jnp.arange(queries, dtype=jnp.int32) + offset
    return (jnp.arange(keys, dtype=jnp.int32)[None, :] <= last[:, None])[None, None]


def window_mask(queries: int, keys: int, window: int, offset: int | Int[Array, ""] = 0) -> Bool[Array, "1 1 T S"]:
    """Sliding window: query t, at index t + offset, sees the keys less than `window` tokens away, on both sides.

    window_mask(4, 4, 2)        causal_mask(4) & window_mask(4, 4, 2)
    1 1 . .                     1 . . .
    1 1 1 .                     1 1 . .
    . 1 1 1                     . 1 1 .
    . . 1 1                     . . 1 1
    """
    distance = jnp.arange(keys, dtype=jnp.int32)[None, :] - (jnp.arange(queries, dtype=jnp.int32) + offset)[:, None]
    return (jnp.abs(distance) < window)[None, None]


def padding_mask(valid: Bool[Array, "B S"]) -> Bool[Array, "B 1 1 S"]:
    """Padding mask: every query sees the keys that are not padding.

    padding_mask([[True, True, False]])
    1 1 .
    """
    given = as_array(valid)
    check_valid(given)
    return jnp.asarray(given)[:, None, None, :]


def lengths_to_valid(lengths: Int[Array, " B"], size: int) -> Bool[Array, "B S"]:
    """True for the first lengths[b] of the `size` places in row b, which hold its tokens.

    lengths_to_valid([1, 3], 3)
    1 . .
    1 1 1
    """
    return jnp.arange(size, dtype=jnp.int32)[None, :] < jnp.asarray(lengths)[:, None]


def ids_to_valid(ids: Int[Array, "B S"] | Int[np.ndarray, "B S"], pad: int) -> Bool[Array, "B S"]:
    """True for each id that is not padding.

    ids_to_valid([[5, 0, 6], [0, 7, 8]], pad=0)
    1 . 1
    . 1 1
    """
    return jnp.asarray(ids) != pad


def seen_keys(mask: Bool[Array, "_ _ _ _"] | None, keys: int) -> Bool[Array, "_ S"]:
    """True for each key that some query of some head sees; all without a mask.

    seen_keys(padding_mask([[False, True, True]]), 3)
    . 1 1
    """
    return jnp.ones((1, keys), bool) if mask is None else jnp.broadcast_to(mask.any((1, 2)), (mask.shape[0], keys))


def combine(*masks: Bool[Array, "_ _ _ _"] | None) -> Bool[Array, "_ _ _ _"] | None:
    """Combine masks: the result allows what every mask allows; None allows everything.

    combine(causal_mask(3), padding_mask([[False, True, True]]))
    . . .
    . 1 .
    . 1 1
    """
    given = [mask for mask in masks if mask is not None]
    for mask in given:
        check_not_torch(mask=mask)
    return functools.reduce(jnp.logical_and, given) if given else None
