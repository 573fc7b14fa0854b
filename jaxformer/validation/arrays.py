"""What a JAX model is given and what it is made of: random keys, weights with values, arrays that are not torch's."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError


def check_key(name: str, key: Any) -> None:
    """None, or one PRNG key, new or old in style; a batch of keys, as `split` gives, is none."""
    if key is None:
        return
    if not is_key(key):
        raise InputError(f"{name} = {key!r:.40} is not a PRNG key; give jax.random.key(0)")
    if key.ndim != (not jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
        raise InputError(f"{name} holds PRNG keys of shape {key.shape}; give one of them")


def is_key(key: Any) -> bool:
    """Whether it is an array of PRNG keys, or the numbers of one."""
    dtype = getattr(key, "dtype", None)
    return dtype is not None and (jnp.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jnp.uint32)


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
