"""Checks of a JAX model's input arrays: ids, random keys, weights. Shapes and types always; values only outside of jit."""

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Shaped

from jaxformer.errors import InputError
from jaxformer.validation import inputs

Tokens = Shaped[Array, "..."] | Shaped[np.ndarray, "..."]
Images = Shaped[Array, "..."] | Shaped[np.ndarray, "..."]
"""Images `B c height width`."""
Masked = Bool[Array, "..."] | Bool[np.ndarray, "..."]
"""Masked patches `B M`."""


def as_array(ids: Any) -> Tokens:
    """Return ids, or a list of ids, as a numpy array, whose values can be checked; tracers of jit are returned unchanged."""
    if isinstance(ids, jax.core.Tracer):
        return ids
    try:
        return np.asarray(ids)
    except TypeError:  # raised for torch's bfloat16
        raise InputError(f"ids are of type {getattr(ids, 'dtype', type(ids).__name__)}; give integers") from None
    except ValueError:
        raise InputError("rows of ids have different lengths; pad them to one, and mask the padding") from None


def check_ids(tokens: Any, vocab_size: int, context: int, *, name: str = "tokens") -> Tokens:
    """Return ids `B T` as an array, after checking their length and, outside of jit, their values."""
    tokens = as_array(tokens)
    inputs.check_tokens(tokens, vocab_size, context, name=name)
    return tokens


def check_frames(frames: Any, n_features: int | None, context: int) -> Tokens:
    """Return frames `B _ M` as an array, after checking their shape and, outside of jit, their values."""
    frames = as_array(frames)
    inputs.check_frames(frames, n_features, context)
    return frames


def check_room(cache: Any, n_tokens: int, context: int) -> None:
    """Raise InputError if the cache lacks free space for this many more tokens; under jit only the type of the cache is
    checked."""
    if cache is not None:
        inputs.check_is_cache(cache)
    if cache is not None and not isinstance(cache.length, jax.core.Tracer):
        inputs.check_room(cache, n_tokens, context)


WORDS = (2, 4)
"""Number of words of an old-style key: threefry's, and rbg's."""


def check_key(name: str, key: Any) -> None:
    """Check that a value is None or one PRNG key, new-style or old-style; a batch of keys, as `split` returns, is refused."""
    if key is None:
        return
    if not is_key(key):
        shown = type(key).__name__ if isinstance(key, nnx.Pytree) else repr(key)
        raise InputError(f"{name} = {shown:.40} is not a PRNG key; give jax.random.key(0)")
    if key.ndim != (not _is_new(key)):
        raise InputError(f"{name} holds PRNG keys of shape {key.shape}; give one of them")
    if not _is_new(key) and key.size not in WORDS:
        raise InputError(f"{name} holds {key.size} words, and no PRNG key has as many; give jax.random.key(0)")


def check_drawn_from(name: str, key: Any) -> None:
    """Check a key from which jax draws: `check_key`, and an old-style key has to be of jax's current implementation."""
    check_key(name, key)
    if key is None or _is_new(key):
        return
    (words,) = jax.eval_shape(lambda: jax.random.PRNGKey(0)).shape
    if key.size != words:
        raise InputError(f"{name} holds {key.size} words, and jax's keys have {words} now; give jax.random.key(0)")


def is_key(key: Any) -> bool:
    """True if a value is an array of PRNG keys, or the words of a key."""
    if not isinstance(key, jax.Array | np.ndarray | np.generic):
        return False  # nnx.Rngs has an attribute of every name, `dtype` too
    return _is_new(key) or key.dtype == jnp.uint32


def _is_new(key: Any) -> bool:
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def check_values(module: Any) -> None:
    """Raise InputError for a module of `jaxformer.abstract`, which has shapes but no values."""
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(module)):
        raise InputError(
            "the model has shapes alone, and nothing to compute with; build it with rngs=nnx.Rngs(0), or fill it with "
            "jaxformer.from_torch"
        )


def check_not_torch(**arrays: Any) -> None:
    """Raise InputError for torch tensors among masks, biases and positions."""
    for name, array in arrays.items():
        if type(array).__module__.partition(".")[0] == "torch":
            raise InputError(f"{name} is a torch.Tensor; give the JAX model a numpy array: {name}.numpy()")
