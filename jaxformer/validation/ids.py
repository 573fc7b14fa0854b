"""Ids that a JAX model is given: shapes and types are always checked, values only outside of jit.

A torch tensor always has values, so the twin calls `jaxformer.validation.inputs` itself.
"""

from typing import Any

import jax.core
import numpy as np
from jaxtyping import Array, Shaped

from jaxformer.errors import InputError
from jaxformer.validation import inputs

Tokens = Shaped[Array, "..."] | Shaped[np.ndarray, "..."]


def as_array(ids: Any) -> Tokens:
    """Ids, or a list of them, as a numpy array, whose values can be checked; the tracers of jit are returned as they are."""
    if isinstance(ids, jax.core.Tracer):
        return ids
    try:
        return np.asarray(ids)
    except TypeError:  # of torch's bfloat16
        raise InputError(f"ids are of type {getattr(ids, 'dtype', type(ids).__name__)}; give integers") from None
    except ValueError:
        raise InputError("rows of ids have different lengths; pad them to one, and mask the padding") from None


def check_ids(tokens: Any, vocab_size: int, context: int, *, name: str = "tokens") -> Tokens:
    """Ids `B T` as an array, with their length checked and, outside of jit, their values."""
    tokens = as_array(tokens)
    inputs.check_tokens(tokens, vocab_size, context, name=name)
    return tokens


def check_room(cache: Any, n_tokens: int, context: int) -> None:
    """Outside of jit: InputError where the cache has no room for this many more tokens."""
    if cache is not None:
        inputs.check_is_cache(cache)
    if cache is not None and not isinstance(cache.length, jax.core.Tracer):
        inputs.check_room(cache, n_tokens, context)
