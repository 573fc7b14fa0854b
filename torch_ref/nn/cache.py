"""KV cache: keys and values of the tokens already seen, allocated once, written in place, never resized.

Keys and values are `B*K S H`: the heads of a sequence are consecutive rows and the keys of a head are contiguous, the layout in
which attention's products read them. Every layer has its own buffers.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig
from jaxformer.validation.inputs import CacheShape, cached_blocks, check_cache_size, check_cache_type


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

    def part(self, layers: slice) -> "KeysValues":
        """Select some of a stack's layers."""
        return replace(self, keys=self.keys[layers], values=None if self.values is None else self.values[layers])

    def join(self, last: "KeysValues") -> "KeysValues":
        """Return these layers and those after them."""
        return replace(self, keys=self.keys + last.keys, values=None if self.values is None else self.values + last.values)

    def take(self, rows: Tensor) -> "KeysValues":
        """Select the sequences of these rows, in this order; a row may be taken more than once."""

        def pick(store: Tensor) -> Tensor:
            return store.unflatten(0, (-1, self.heads))[rows].flatten(0, 1)

        values = None if self.values is None else tuple(map(pick, self.values))
        return replace(self, keys=tuple(map(pick, self.keys)), values=values)


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

    layers: KeysValues
    """Keys and values of each layer, `B*K S H`."""
    length: int
    """Number of tokens held."""

    @property
    def capacity(self) -> int:
        """Number of tokens that fit, S."""
        return self.layers.keys[0].shape[1]

    @property
    def shape(self) -> CacheShape:
        """Number of layers, sequences and key/value heads, and the width of a head."""
        rows, _, width = self.layers.keys[0].shape
        return len(self.layers.keys), rows // self.layers.heads, self.layers.heads, width

    def advance(self, layers: KeysValues, n_tokens: int) -> "KVCache":
        """Return the cache with `layers`, to each of which n tokens have been appended."""
        return replace(self, layers=layers, length=self.length + n_tokens)

    def split(self, n_layers: int) -> tuple["KVCache", "KVCache"]:
        """Return the caches of the first layers and of the others."""
        first, last = (self.layers.part(it) for it in (slice(n_layers), slice(n_layers, None)))
        return replace(self, layers=first), replace(self, layers=last)

    def join(self, last: "KVCache") -> "KVCache":
        """Return the cache of these layers and of those after them, the inverse of `split`."""
        return replace(self, layers=self.layers.join(last.layers))

    def take(self, rows: Tensor) -> "KVCache":
        """Select the sequences of these rows, in this order; a row may be taken more than once."""
        return replace(self, layers=self.layers.take(rows))


def empty_cache(model: nn.Module | BlockConfig, batch: int, capacity: int, dtype: torch.dtype | None = None) -> KVCache:
    """Allocate a cache for `batch` sequences of up to `capacity` tokens, in the model's dtype unless another is given.

    `model` has a `config`, or is a configuration, which stands for a model in float32, in which models are initialised. The
    cache of an encoder-decoder is its decoder's.
    """
    blocks = cached_blocks(model)
    check_cache_size(batch, capacity)
    if dtype is None:
        dtype = torch.float32 if isinstance(model, BlockConfig) else next(model.parameters()).dtype
    heads, width = blocks.cached_heads
    shape = (batch * heads, capacity, width)
    keys, values = (tuple(torch.zeros(shape, dtype=dtype) for _ in range(blocks.n_layers)) for _ in range(2))
    return KVCache(KeysValues(keys, values if blocks.kv_latent is None else None, heads), 0)
