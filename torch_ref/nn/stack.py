"""L blocks in a row."""

from typing import cast

import torch
from torch import Tensor, nn

from jaxformer.config.models import BlockConfig
from jaxformer.validation.inputs import check_cache
from torch_ref.nn.attention import Memory, MultiHeadAttention, Source
from torch_ref.nn.blocks import AttentionWeights, Block
from torch_ref.nn.cache import KeysValues, KVCache, LayerCache


class Stack(nn.Module):
    """`stack[i]` is layer i."""

    def __init__(self, config: BlockConfig, *, cross: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, cross=cross) for _ in range(config.n_layers))

    def __getitem__(self, i: int) -> Block:
        return cast(Block, self.blocks[i])

    def __len__(self) -> int:
        return len(self.blocks)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        memory_mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> Tensor:
        """Masks (`B N|1 T S`, True = may attend) hide keys from every layer; biases of that shape are added to the scores."""
        return self.extend(x, None, mask, memory, memory_mask, bias=bias, memory_bias=memory_bias)[0]

    def extend(
        self,
        x: Tensor,
        cache: KVCache | None,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        memory_mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> tuple[Tensor, KVCache | None]:
        """Every layer in turn; the cache comes back with x in it. The memory is a source's states, or `remember` of them."""
        if cache is not None:
            check_cache(cache.shape, (len(self), x.shape[0]))
        n_tokens = x.shape[1]
        for i in range(len(self)):
            read = _of_layer(memory, i) if isinstance(memory, KeysValues) else memory
            held = None if cache is None else LayerCache(_of_layer(cache.layers, i), cache.length)
            x, _ = self[i].extend(x, held, mask, read, memory_mask, bias=bias, memory_bias=memory_bias)
        return x, None if cache is None else cache.advance(cache.layers, n_tokens)

    def remember(self, memory: Source) -> KeysValues:
        """Every layer's keys and values of a memory, which stay the same from token to token."""
        attentions = [cast(MultiHeadAttention, self[i].cross_attention) for i in range(len(self))]
        found = [attention.keys_values(memory) for attention in attentions]
        keys, values = zip(*((each.keys, each.values) for each in found), strict=True)
        return KeysValues(keys, values, attentions[0].kv_heads)

    def weights(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Source | None = None,
        memory_mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> AttentionWeights:
        """The attention weights of every layer."""
        found = []
        for i in range(len(self)):
            found.append(self[i].weights(x, mask, memory, memory_mask, bias=bias, memory_bias=memory_bias))
            x = self[i](x, mask, memory, memory_mask, bias=bias, memory_bias=memory_bias)
        own, cross = zip(*found, strict=True)
        return AttentionWeights(torch.stack(own), None if cross[0] is None else torch.stack(cross))

    def hidden_states(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Source | None = None,
        memory_mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
    ) -> Tensor:
        """x and the output of every layer, L + 1 in all: `_ B T D`."""
        found = [x]
        for i in range(len(self)):
            found.append(self[i](found[-1], mask, memory, memory_mask, bias=bias, memory_bias=memory_bias))
        return torch.stack(found)


def _of_layer(all_layers: KeysValues, i: int) -> KeysValues:
    return KeysValues(all_layers.keys[i], all_layers.values[i], all_layers.heads)
