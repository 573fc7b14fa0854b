"""Keys and values of the tokens already seen: allocated once, written in place under jit, never resized.

Keys and values are `B*K S H`: the heads of a sequence side by side, and what a head holds in one piece, as the products of
attention read it. Every layer has buffers of its own. Any other layout costs a copy of the whole cache a token.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.export import is_symbolic_dim
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from jaxformer.config.blocks import BlockConfig
from jaxformer.pytree import is_weight
from jaxformer.validation.fields import check_size, whole
from jaxformer.validation.inputs import CacheShape, cached_blocks, check_cache_size, check_cache_type


def fold_heads(x: Float[Array, "B S K H"]) -> Float[Array, "BK S H"]:
    """The heads of each sequence side by side."""
    batch, n_tokens, heads, width = x.shape
    return x.swapaxes(1, 2).reshape(batch * heads, n_tokens, width)


def unfold_heads(x: Float[Array, "BK S H"], heads: int) -> Float[Array, "B S K H"]:
    """The inverse of fold_heads."""
    return x.reshape(-1, heads, *x.shape[1:]).swapaxes(1, 2)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeysValues:
    """What cross-attention reads, computed once for a whole generation; those of a stack are tuples, an array a layer."""

    keys: Any
    """B*K S H; of a stack, a tuple of them."""
    values: Any
    """The same."""
    heads: int = field(metadata={"static": True})
    """K"""

    def unfolded(self) -> tuple[Array, Array]:
        """A layer's keys and values, `B S K H`."""
        return unfold_heads(self.keys, self.heads), unfold_heads(self.values, self.heads)

    def take(self, rows: Array) -> "KeysValues":
        """The sequences of these rows, in this order; a row may be taken more than once."""

        def pick(store: Array) -> Array:
            return store.reshape(-1, self.heads, *store.shape[1:])[rows].reshape(-1, *store.shape[1:])

        return jax.tree.map(pick, self)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerCache:
    """What one layer holds of the tokens already seen."""

    held: KeysValues
    length: Array
    """Tokens held, a scalar."""

    @property
    def capacity(self) -> int:
        """Tokens that fit, S."""
        return self.held.keys.shape[-2]

    def append(self, keys: Array, values: Array) -> tuple[Array, Array, "LayerCache"]:
        """Write B T K H after the cached tokens; all keys and values `B S K H`, and the cache that holds them.

        Beyond the capacity JAX would write over the newest tokens; here that gives NaN. InputError for keys of another type.
        """
        check_cache_type(self.held.keys.dtype, keys.dtype)
        fits = self.length + keys.shape[1] <= self.capacity

        def write(store: Array, new: Array) -> Array:
            new = jnp.where(fits, fold_heads(new), jnp.full((), jnp.nan, store.dtype))
            return jax.lax.dynamic_update_slice_in_dim(store, new, self.length, axis=1)

        held = replace(self.held, keys=write(self.held.keys, keys), values=write(self.held.values, values))
        return *held.unfolded(), replace(self, held=held)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """State that goes in and comes out."""

    layers: KeysValues
    """Of each layer, `B*K S H`."""
    length: Array
    """Tokens held, a scalar."""

    @property
    def capacity(self) -> int:
        """Tokens that fit, S."""
        return self.layers.keys[0].shape[1]

    @property
    def shape(self) -> CacheShape:
        """Layers, sequences, key/value heads and their width."""
        rows, _, width = self.layers.keys[0].shape
        return len(self.layers.keys), rows // self.layers.heads, self.layers.heads, width

    def advance(self, layers: KeysValues, n_tokens: int) -> "KVCache":
        """Once every layer has written its n tokens: they count as held."""
        return replace(self, layers=layers, length=self.length + n_tokens)

    def take(self, rows: Array) -> "KVCache":
        """The sequences of these rows, in this order; a row may be taken more than once."""
        return replace(self, layers=self.layers.take(rows))

    def grow(self, capacity: int) -> "KVCache":
        """The same with room for more tokens; ConfigError for less than it has."""
        check_size("capacity", capacity := whole(capacity), least=self.capacity)
        room = ((0, 0), (0, capacity - self.capacity), (0, 0))
        return replace(self, layers=jax.tree.map(lambda store: jnp.pad(store, room), self.layers))


def empty_cache(model: nnx.Module | BlockConfig, batch: int, capacity: int, dtype: DTypeLike | None = None) -> KVCache:
    """A cache for `batch` sequences of up to `capacity` tokens of a model with a `config`, and of the model's type.

    A configuration stands for a model in float32, in which models are initialised. The cache of an encoder-decoder is its
    decoder's.
    """
    blocks = cached_blocks(model)
    known = [1 if is_symbolic_dim(size) else size for size in (batch, capacity)]  # that of an exported program: when it runs
    check_cache_size(*known)
    if dtype is None:
        dtype = jnp.float32 if isinstance(model, BlockConfig) else next(filter(is_weight, jax.tree.leaves(model))).dtype
    shape = (batch * blocks.kv_heads, capacity, blocks.head_width)
    keys, values = (tuple(jnp.zeros(shape, dtype) for _ in range(blocks.n_layers)) for _ in range(2))
    return KVCache(KeysValues(keys, values, blocks.kv_heads), jnp.zeros((), jnp.int32))
