"""Keys and values of the tokens already seen: allocated once, written in place, never resized.

Keys and values are `B*K S H`: the heads of a sequence side by side, and what a head holds in one piece, as the products of
attention read it. Every layer has buffers of its own.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig
from jaxformer.validation.inputs import CacheShape, cached_blocks, check_cache_size, check_cache_type


def fold_heads(x: Tensor) -> Tensor:
    """The heads of each sequence side by side: `B S K H` -> `B*K S H`."""
    return x.transpose(1, 2).flatten(0, 1)


def unfold_heads(x: Tensor, heads: int) -> Tensor:
    """The inverse of fold_heads."""
    return x.unflatten(0, (-1, heads)).transpose(1, 2)


@dataclass(frozen=True)
class KeysValues:
    """What cross-attention reads, computed once for a whole generation; those of a stack are tuples, a tensor a layer."""

    keys: Any
    """B*K S H; of a stack, a tuple of them."""
    values: Any
    """The same."""
    heads: int
    """K"""

    def unfolded(self) -> tuple[Tensor, Tensor]:
        """A layer's keys and values, `B S K H`."""
        return unfold_heads(self.keys, self.heads), unfold_heads(self.values, self.heads)

    def take(self, rows: Tensor) -> "KeysValues":
        """The sequences of these rows, in this order; a row may be taken more than once."""

        def pick(store: Tensor) -> Tensor:
            return store.unflatten(0, (-1, self.heads))[rows].flatten(0, 1)

        return replace(self, keys=tuple(map(pick, self.keys)), values=tuple(map(pick, self.values)))


@dataclass(frozen=True)
class LayerCache:
    """What one layer holds of the tokens already seen."""

    held: KeysValues
    length: int
    """Tokens held."""

    @property
    def capacity(self) -> int:
        """Tokens that fit, S."""
        return self.held.keys.shape[-2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, "LayerCache"]:
        """Write B T K H after the cached tokens; all keys and values `B S K H`, and the cache that holds them.

        The tensors are written in place, so a cache that was continued cannot be continued again. Beyond the capacity torch
        raises RuntimeError. InputError for keys of another type.
        """
        held = self.held
        check_cache_type(held.keys.dtype, keys.dtype)
        places = slice(self.length, self.length + keys.shape[1])
        held.keys[:, places] = fold_heads(keys)
        held.values[:, places] = fold_heads(values)
        return *held.unfolded(), self


@dataclass(frozen=True)
class KVCache:
    """State that goes in and comes out."""

    layers: KeysValues
    """Of each layer, `B*K S H`."""
    length: int
    """Tokens held."""

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

    def take(self, rows: Tensor) -> "KVCache":
        """The sequences of these rows, in this order; a row may be taken more than once."""
        return replace(self, layers=self.layers.take(rows))


def empty_cache(model: nn.Module | BlockConfig, batch: int, capacity: int, dtype: torch.dtype | None = None) -> KVCache:
    """A cache for `batch` sequences of up to `capacity` tokens of a model with a `config`, and of the model's type.

    A configuration stands for a model in float32, in which models are initialised. The cache of an encoder-decoder is its
    decoder's.
    """
    blocks = cached_blocks(model)
    check_cache_size(batch, capacity)
    if dtype is None:
        dtype = torch.float32 if isinstance(model, BlockConfig) else next(model.parameters()).dtype
    shape = (batch * blocks.kv_heads, capacity, blocks.head_width)
    keys, values = (tuple(torch.zeros(shape, dtype=dtype) for _ in range(blocks.n_layers)) for _ in range(2))
    return KVCache(KeysValues(keys, values, blocks.kv_heads), 0)
