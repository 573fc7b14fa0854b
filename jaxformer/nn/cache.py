"""KV cache: keys and values of the tokens already seen, allocated once, written in place under jit, never resized.

Keys and values are `B*K S H`: the heads of a sequence are consecutive rows and the keys of a head are contiguous, the layout in
which attention's products read them. Every layer has its own buffers. Any other layout costs a copy of the whole cache per
token.
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
from jaxformer.config.layer_kinds import own_layers
from jaxformer.pytree import is_weight
from jaxformer.validation.fields import check_size, whole
from jaxformer.validation.inputs import CacheShape, cached_blocks, check_cache_size, check_cache_type


def split_heads(x: Float[Array, "B T NH"], heads: int) -> Float[Array, "B T N H"]:
    """Split the last axis into heads."""
    return x.reshape(*x.shape[:-1], heads, -1)


def merge_heads(x: Float[Array, "B T N H"]) -> Float[Array, "B T NH"]:
    """Inverse of split_heads."""
    return x.reshape(*x.shape[:-2], -1)


def split_qkv(
    qkv: Float[Array, "B T X"], heads: int, kv_heads: int
) -> tuple[Float[Array, "B T NH"], Float[Array, "B T KH"], Float[Array, "B T KH"]]:
    """Split a fused projection: all queries, then all keys, then all values, as torch and GPT-2 pack them."""
    width = qkv.shape[-1] // (heads + 2 * kv_heads)
    q, k, v = jnp.split(qkv, [heads * width, (heads + kv_heads) * width], axis=-1)
    return q, k, v


def fold_heads(x: Float[Array, "B S K H"]) -> Float[Array, "BK S H"]:
    """Fold the heads into the batch axis; the heads of a sequence are consecutive rows."""
    batch, n_tokens, heads, width = x.shape
    return x.swapaxes(1, 2).reshape(batch * heads, n_tokens, width)


def unfold_heads(x: Float[Array, "BK S H"], heads: int) -> Float[Array, "B S K H"]:
    """Inverse of fold_heads."""
    return x.reshape(-1, heads, *x.shape[1:]).swapaxes(1, 2)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeysValues:
    """Keys and values of a layer or stack, in a cache or, computed once per generation, for cross-attention."""

    keys: Any
    """Keys, `B*K S H`; for a stack, a tuple with an array per layer."""
    values: Any
    """Values, in the same layout as the keys; None if the keys are values too (latent attention)."""
    heads: int = field(metadata={"static": True})
    """Number of key/value heads, K."""

    def unfolded(self) -> tuple[Array, Array]:
        """Return a layer's keys and values, `B S K H`."""
        keys = unfold_heads(self.keys, self.heads)
        return keys, keys if self.values is None else unfold_heads(self.values, self.heads)

    def take(self, rows: Array) -> "KeysValues":
        """Select the sequences of these rows, in this order; a row may be taken more than once."""

        def pick(store: Array) -> Array:
            return store.reshape(-1, self.heads, *store.shape[1:])[rows].reshape(-1, *store.shape[1:])

        return jax.tree.map(pick, self)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerCache:
    """Cached keys and values of one layer."""

    held: KeysValues
    length: Array
    """Number of tokens held, a scalar."""

    @property
    def capacity(self) -> int:
        """Number of tokens that fit, S."""
        return self.held.keys.shape[-2]

    def append(self, keys: Array, values: Array | None) -> tuple[Array, Array, "LayerCache"]:
        """Write `B T K H` after the cached tokens; return all keys and values, `B S K H`, and the new cache.

        Beyond the capacity JAX would overwrite the newest tokens; NaN is written instead. InputError for keys of another dtype.
        """
        check_cache_type(self.held.keys.dtype, keys.dtype)
        fits = self.length + keys.shape[1] <= self.capacity

        def write(store: Array, new: Array) -> Array:
            new = jnp.where(fits, fold_heads(new), jnp.full((), jnp.nan, store.dtype))
            return jax.lax.dynamic_update_slice_in_dim(store, new, self.length, axis=1)

        stored = None if values is None else write(self.held.values, values)
        held = replace(self.held, keys=write(self.held.keys, keys), values=stored)
        return *held.unfolded(), replace(self, held=held)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache:
    """KV cache of a model; `extend` takes a cache and returns the next one."""

    layers: tuple[KeysValues, ...]
    """Keys and values of each layer that has its own, `B*K S H`; layers may have heads of several shapes."""
    length: Array
    """Number of tokens held, a scalar."""

    @property
    def capacity(self) -> int:
        """Number of tokens that fit, S."""
        return self.layers[0].keys.shape[1]

    @property
    def shapes(self) -> set[CacheShape]:
        """Number of layers, sequences and key/value heads, and the width of a head, of every layer."""
        sizes = ((it.heads, *it.keys.shape) for it in self.layers)
        return {(len(self.layers), rows // heads, heads, width) for heads, rows, _, width in sizes}

    def advance(self, layers: tuple[KeysValues, ...], n_tokens: int) -> "KVCache":
        """Return the cache with `layers`, to each of which n tokens have been appended."""
        return replace(self, layers=layers, length=self.length + n_tokens)

    def part(self, layers: slice) -> "KVCache":
        """Return the cache of some layers."""
        return replace(self, layers=self.layers[layers])

    def take(self, rows: Array) -> "KVCache":
        """Select the sequences of these rows, in this order; a row may be taken more than once."""
        return replace(self, layers=tuple(it.take(rows) for it in self.layers))

    def grow(self, capacity: int) -> "KVCache":
        """Return a copy that fits more tokens; ConfigError for a smaller capacity."""
        check_size("capacity", capacity := whole(capacity), least=self.capacity)
        room = ((0, 0), (0, capacity - self.capacity), (0, 0))
        return replace(self, layers=jax.tree.map(lambda store: jnp.pad(store, room), self.layers))


def empty_cache(model: nnx.Module | BlockConfig, batch: int, capacity: int, dtype: DTypeLike | None = None) -> KVCache:
    """Allocate a cache for `batch` sequences of up to `capacity` tokens, in the model's dtype unless another is given.

    `model` has a `config`, or is a configuration, which stands for a model in float32, in which models are initialised. The
    cache of an encoder-decoder is its decoder's.
    """
    blocks = cached_blocks(model)
    known = [1 if is_symbolic_dim(size) else size for size in (batch, capacity)]  # symbolic: known when the program runs
    check_cache_size(*known)
    if dtype is None:
        dtype = jnp.float32 if isinstance(model, BlockConfig) else next(filter(is_weight, jax.tree.leaves(model))).dtype
    layers = []
    for config in own_layers(blocks):
        heads, width = config.cached_heads
        keys, values = (jnp.zeros((batch * heads, capacity, width), dtype) for _ in range(2))
        layers.append(KeysValues(keys, values if config.kv_latent is None else None, heads))
    return KVCache(tuple(layers), jnp.zeros((), jnp.int32))
