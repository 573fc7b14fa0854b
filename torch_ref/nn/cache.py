"""Keys and values of the tokens already seen: allocated once, written in place, never resized."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from jaxformer.config.models import BlockConfig
from jaxformer.validation.inputs import cached_blocks, check_cache_size, check_cache_type


@dataclass(frozen=True)
class KeysValues:
    """What cross-attention reads, computed once for a whole generation; those of a stack have a leading layer axis."""

    keys: Tensor
    """B S K H"""
    values: Tensor
    """B S K H"""


@dataclass(frozen=True)
class KVCache:
    """State that goes in and comes out. `layer` is a cursor: each attention layer writes its own place and moves it on."""

    keys: Tensor
    """L B S K H"""
    values: Tensor
    """L B S K H"""
    length: int
    """Tokens held."""
    layer: int
    """The layer that writes next."""

    @property
    def capacity(self) -> int:
        """Tokens that fit, S."""
        return self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, "KVCache"]:
        """Write B T K H after this layer's cached tokens; all its keys and values `B S K H`, and the cache at the next layer.

        The tensors are written in place, so a cache that was continued cannot be continued again. Beyond the capacity torch
        raises RuntimeError. InputError for keys of another type.
        """
        check_cache_type(self.keys.dtype, keys.dtype)
        places = slice(self.length, self.length + keys.shape[1])
        self.keys[self.layer, :, places] = keys
        self.values[self.layer, :, places] = values
        return self.keys[self.layer], self.values[self.layer], replace(self, layer=self.layer + 1)

    def advance(self, n_tokens: int) -> "KVCache":
        """Once every layer has written its n tokens: they count as held, the cursor returns to the first layer."""
        return replace(self, length=self.length + n_tokens, layer=0)

    def take(self, rows: Tensor) -> "KVCache":
        """The sequences of these rows, in this order; a row may be taken more than once."""
        return replace(self, keys=self.keys[:, rows], values=self.values[:, rows])


def empty_cache(model: nn.Module | BlockConfig, batch: int, capacity: int, dtype: torch.dtype | None = None) -> KVCache:
    """A cache for `batch` sequences of up to `capacity` tokens of a model with a `config`, and of the model's type.

    A configuration stands for a model in float32, in which models are initialised. The cache of an encoder-decoder is its
    decoder's.
    """
    blocks = cached_blocks(model)
    check_cache_size(model, batch, capacity)
    if dtype is None:
        dtype = torch.float32 if isinstance(model, BlockConfig) else next(model.parameters()).dtype
    shape = (blocks.n_layers, batch, capacity, blocks.kv_heads, blocks.head_width)
    return KVCache(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype), 0, 0)
