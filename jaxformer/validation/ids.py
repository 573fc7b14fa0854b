"""What a model is given is checked before it is used: shapes and types always, values where they are known.

torch's tensors have their values at hand, so the twin calls `jaxformer.validation.inputs` itself.
"""

from typing import Any

import jax.core
import numpy as np
from jaxtyping import Array, Shaped

from jaxformer.errors import InputError
from jaxformer.validation import inputs

Tokens = Shaped[Array, "..."] | Shaped[np.ndarray, "..."]


def known(ids: Any) -> Tokens:
    """Ids as a numpy array, which has its values at hand; inside of jit, as they are. Lists are taken too."""
    if isinstance(ids, jax.core.Tracer):
        return ids
    try:
        return np.asarray(ids)
    except ValueError:
        raise InputError("rows of ids have different lengths; pad them to one, and mask the padding") from None


def check_ids(tokens: Any, vocab_size: int, context: int, *, name: str = "tokens") -> Tokens:
    """Ids `B T` of a known length and, outside of jit, of known values: they come back as an array."""
    tokens = known(tokens)
    inputs.check_tokens(tokens, vocab_size, context, name=name)
    return tokens


def check_room(cache: Any, n_tokens: int, context: int) -> None:
    """Outside of jit: the cache takes these tokens too."""
    if cache is not None and not isinstance(cache.length, jax.core.Tracer):
        inputs.check_room(cache, n_tokens, context)
