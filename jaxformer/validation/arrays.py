"""Arrays that a JAX model is given: ids, random keys, weights; shapes and types always, values only outside of jit."""

from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from flax import nnx
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


WORDS = (2, 4)
"""Of an old key: threefry's, and rbg's."""


def check_key(name: str, key: Any) -> None:
    """None, or one PRNG key, new or old in style; a batch of keys, as `split` gives, is none."""
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
    """The same, where jax draws from it: an old key has to be of the implementation that jax uses now."""
    check_key(name, key)
    if key is None or _is_new(key):
        return
    (words,) = jax.eval_shape(lambda: jax.random.PRNGKey(0)).shape
    if key.size != words:
        raise InputError(f"{name} holds {key.size} words, and jax's keys have {words} now; give jax.random.key(0)")


def is_key(key: Any) -> bool:
    """Whether it is an array of PRNG keys, or the numbers of one."""
    if not isinstance(key, jax.Array | np.ndarray | np.generic):
        return False  # nnx.Rngs has a stream of every name, `dtype` too
    return _is_new(key) or key.dtype == jnp.uint32


def _is_new(key: Any) -> bool:
    return jnp.issubdtype(key.dtype, jax.dtypes.prng_key)


def check_values(module: Any) -> None:
    """InputError for a module of `jaxformer.abstract`, which has shapes alone."""
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(module)):
        raise InputError(
            "the model has shapes alone, and nothing to compute with; build it with rngs=nnx.Rngs(0), or fill it with "
            "jaxformer.from_torch"
        )


def check_not_torch(**arrays: Any) -> None:
    """InputError for a tensor of torch among masks, biases and positions."""
    for name, array in arrays.items():
        if type(array).__module__.partition(".")[0] == "torch":
            raise InputError(f"{name} is a torch.Tensor; give the JAX model a numpy array: {name}.numpy()")
