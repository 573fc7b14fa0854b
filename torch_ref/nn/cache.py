"""KV cache: keys and values of the tokens already seen, allocated once, written in place, never resized.

Keys and values are `B*K S H`: the heads of a sequence are consecutive rows and the keys of a head are contiguous, the layout in
which attention's products read them. Every layer has its own buffers.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.layer_kinds import own_layers
from jaxformer.validation.inputs import CacheShape, cached_blocks, check_cache_size, check_cache_type


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split the last axis into heads: `B T NH` -> `B T N H`."""
    return x.unflatten(-1, (heads, -1))


def merge_heads(x: Tensor) -> Tensor:
    """Inverse of split_heads."""
    return x.flatten(-2)


def split_qkv(qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Split a fused projection: all queries, then all keys, then all values, as torch and GPT-2 pack them."""
    width = qkv.shape[-1] // (heads + 2 * kv_heads)
    q, k, v = qkv.split([heads * width, kv_heads * width, kv_heads * width], dim=-1)
    return q, k, v


def fold_heads(x: Tensor) -> Tensor:
    """Fold the heads into the batch axis, `B S K H` -> `B*K S H`; the heads of a sequence are consecutive rows."""
    return x.transpose(1, 2).flatten(0, 1)


def unfold_heads(x: Tensor, heads: int) -> Tensor:
    """Inverse of fold_heads."""
    return x.unflatten(0, (-1, heads)).transpose(1, 2)


@dataclass(frozen=True)
class KeysValues:
    """Keys and values of a layer or stack, in a cache or, computed once per generation, for cross-attention."""

    keys: Any
    """Keys, `B*K S H`; for a stack, a tuple with a tensor per layer."""
    values: Any
    """Values, in the same layout as the keys; None if the keys are values too (latent attention)."""
    heads: int
    """Number of key/value heads, K."""

    def unfolded(self) -> tuple[Tensor, Tensor]:
        """Return a layer's keys and values, `B S K H`."""
        keys = unfold_heads(self.keys, self.heads)
        return keys, keys if self.values is None else unfold_heads(self.values, self.heads)

    def take(self, rows: Tensor) -> "KeysValues":
        """Select the sequences of these rows, in this order; a row may be taken more than once."""

        def pick(store: Any) -> Any:
            if store is None or isinstance(store, tuple):
                return store and tuple(map(pick, store))
            return store.unflatten(0, (-1, self.heads))[rows].flatten(0, 1)

        return replace(self, keys=pick(self.keys), values=pick(self.values))


@dataclass(frozen=True)
class LayerCache:
    """Cached keys and values of one layer."""

    held: KeysValues
    length: int
    """Number of tokens held."""

    @property
    def capacity(self) -> int:
        """Number of tokens that fit, S."""
        return self.held.keys.shape[-2]

    def append(self, keys: Tensor, values: Tensor | None) -> tuple[Tensor, Tensor, "LayerCache"]:
        """Write `B T K H` after the cached tokens; return all keys and values, `B S K H`, and the cache.

        The tensors are written in place, so that a cache can be continued only once. Beyond the capacity torch raises
        RuntimeError. InputError for keys of another dtype.
        """
        held = self.held
        check_cache_type(held.keys.dtype, keys.dtype)
        places = slice(self.length, self.length + keys.shape[1])
        held.keys[:, places] = fold_heads(keys)
        if values is not None:
            held.values[:, places] = fold_heads(values)
        return *held.unfolded(), self


@dataclass(frozen=True)
class KVCache:
    """KV cache of a model; `extend` takes a cache and returns the next one."""

    layers: tuple[KeysValues, ...]
    """Keys and values of each layer that has its own, `B*K S H`; layers may have heads of several shapes."""
    length: int
    """Number of tokens held."""

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

    def take(self, rows: Tensor) -> "KVCache":
        """Select the sequences of these rows, in this order; a row may be taken more than once."""
        return replace(self, layers=tuple(it.take(rows) for it in self.layers))


def empty_cache(model: nn.Module | BlockConfig, batch: int, capacity: int, dtype: torch.dtype | None = None) -> KVCache:
    """Allocate a cache for `batch` sequences of up to `capacity` tokens, in the model's dtype unless another is given.

    `model` has a `config`, or is a configuration, which stands for a model in float32, in which models are initialised. The
    cache of an encoder-decoder is its decoder's.
    """
    blocks = cached_blocks(model)
    check_cache_size(batch, capacity)
    if dtype is None:
        dtype = torch.float32 if isinstance(model, BlockConfig) else next(model.parameters()).dtype
    layers = []
    for config in own_layers(blocks):
        heads, width = config.cached_heads
        keys, values = (torch.zeros((batch * heads, capacity, width), dtype=dtype) for _ in range(2))
        layers.append(KeysValues(keys, values if config.kv_latent is None else None, heads))
    return KVCache(tuple(layers), 0)
