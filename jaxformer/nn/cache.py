"""Keys and values of the tokens already seen: allocated once, written in place under jit, never resized."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array

from jaxformer.config.models import BlockConfig
from jaxformer.pytree import is_weight
from jaxformer.validation.inputs import cached_blocks, check_cache_size, check_cache_type


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeysValues:
    """What cross-attention reads, computed once for a whole generation; those of a stack have a leading layer axis."""

    keys: Array
    """B S K H"""
    values: Array
    """B S K H"""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """State that goes in and comes out. `layer` is a cursor: each attention layer writes its own place and moves it on."""

    keys: Array
    """L B S K H"""
    values: Array
    """L B S K H"""
    length: Array
    """Tokens held, a scalar."""
    layer: Array
    """The layer that writes next, a scalar."""

    @property
    def capacity(self) -> int:
        """Tokens that fit, S."""
        return self.keys.shape[2]

    def append(self, keys: Array, values: Array) -> tuple[Array, Array, "KVCache"]:
        """Write B T K H after this layer's cached tokens; all its keys and values `B S K H`, and the cache at the next layer.

        Beyond the capacity JAX would write over the newest tokens; here that gives NaN. InputError for keys of another type.
        """
        check_cache_type(self.keys.dtype, keys.dtype)
        fits = self.length + keys.shape[1] <= self.capacity
        zero = jnp.zeros((), self.length.dtype)
        start = (self.layer, zero, self.length, zero, zero)

        def write(store, new):
            new = jnp.where(fits, new, jnp.full((), jnp.nan, store.dtype))
            return jax.lax.dynamic_update_slice(store, new[None], start)

        after = replace(self, keys=write(self.keys, keys), values=write(self.values, values), layer=self.layer + 1)
        return after.keys[self.layer], after.values[self.layer], after

    def advance(self, n_tokens: int) -> "KVCache":
        """Once every layer has written its n tokens: they count as held, the cursor returns to the first layer."""
        return replace(self, length=self.length + n_tokens, layer=jnp.zeros_like(self.layer))

    def take(self, rows: Array) -> "KVCache":
        """The sequences of these rows, in this order; a row may be taken more than once."""
        return replace(self, keys=self.keys[:, rows], values=self.values[:, rows])


def empty_cache(model: nnx.Module | BlockConfig, batch: int, capacity: int, dtype: DTypeLike | None = None) -> KVCache:
    """A cache for `batch` sequences of up to `capacity` tokens of a model with a `config`, and of the model's type.

    A configuration stands for a model in float32, in which models are initialised. The cache of an encoder-decoder is its
    decoder's.
    """
    blocks = cached_blocks(model)
    check_cache_size(model, batch, capacity)
    if dtype is None:
        dtype = jnp.float32 if isinstance(model, BlockConfig) else next(filter(is_weight, jax.tree.leaves(model))).dtype
    shape = (blocks.n_layers, batch, capacity, blocks.kv_heads, blocks.head_width)
    zero = jnp.zeros((), jnp.int32)
    return KVCache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), zero, zero)
