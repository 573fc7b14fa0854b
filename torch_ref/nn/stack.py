"""Stack of L blocks."""

from typing import cast

import torch
from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.layer_kinds import Sharing
from jaxformer.validation.inputs import check_cache
from torch_ref.nn.attention import Memory, MultiHeadAttention, Source
from torch_ref.nn.blocks import AttentionWeights, Block
from torch_ref.nn.cache import KeysValues, KVCache, LayerCache
from torch_ref.nn.disentangled import DistanceEncoding
from torch_ref.nn.place import NOTHING, Beside, Place
from torch_ref.nn.positions import biased, make_bias


class Stack(nn.Module):
    """Stack of blocks; `stack[i]` is layer i, and with `shared_layers` the one block.

    With `causal`, later tokens are hidden, but for those of a cache, whose mask hides them: T5's relative bias then has buckets
    for the past alone.
    """

    def __init__(
        self,
        config: BlockConfig,
        *,
        cross: bool = False,
        causal: bool = False,
        attention_norm: bool = True,
        sharing: Sharing = "none",
    ):
        super().__init__()
        self.held = config.cached_heads
        self.kinds = config.windowed_layers, config.rotated_layers
        self.distances = DistanceEncoding(config) if config.relative_bias == "disentangled" else None
        self.relative_bias = make_bias(config, causal=causal)
        self.n_layers = config.n_layers
        self.shared, self.routes = config.shared_layers, config.n_experts > 0
        held = 1 if config.shared_layers else config.n_layers
        more = {"cross": cross, "causal": causal, "attention_norm": attention_norm, "sharing": sharing}
        self.blocks = nn.ModuleList(Block(config, **more) for _ in range(held))

    def __getitem__(self, i: int) -> Block:
        return cast(Block, self.blocks[0 if self.shared else i])

    def __len__(self) -> int:
        return self.n_layers

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        memory_mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
        positions: Tensor | None = None,
        beside: Beside = NOTHING,
    ) -> Tensor:
        """Apply every layer. Masks (`B N|1 T S`, True = may attend) hide keys; biases of that shape are added to the scores."""
        more = {"bias": bias, "memory_bias": memory_bias, "positions": positions, "beside": beside}
        return self.extend(x, None, mask, memory, memory_mask, **more)[0]

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
        positions: Tensor | None = None,
        beside: Beside = NOTHING,
    ) -> tuple[Tensor, KVCache | None]:
        """Apply every layer; return the output and the cache with x in it.

        `memory` is the states of a source, or the result of `remember`. `positions` are rotary positions; None: 0, 1, 2, ...,
        counted on from the cached tokens.
        """
        if cache is not None and beside.read is None:
            for shape in cache.shapes:
                check_cache(shape, (len(self), x.shape[0], *self.held))
        bias, kept = biased(self.relative_bias, x, cache, mask, bias), []
        for i in range(len(self)):
            read = _of_layer(memory, i) if isinstance(memory, KeysValues) else memory
            held = None if cache is None else LayerCache(beside.read or cache.layers[i], cache.length)
            more = {"bias": bias, "memory_bias": memory_bias, "place": self._place(i, positions, beside)}
            x, after = self[i].extend(x, held, mask, read, memory_mask, **more)
            kept += [] if after is None else [after.held]
        if not kept:
            return x, None
        return x, KVCache(tuple(kept), x.shape[1]) if cache is None else cache.advance(tuple(kept), x.shape[1])

    def remember(self, memory: Source) -> KeysValues:
        """Compute every layer's keys and values of a memory, which stay the same from token to token."""
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
        positions: Tensor | None = None,
        beside: Beside = NOTHING,
    ) -> AttentionWeights:
        """Return the attention weights of every layer."""
        found, bias = [], biased(self.relative_bias, x, None, mask, bias)
        for i in range(len(self)):
            more = {"bias": bias, "memory_bias": memory_bias, "place": self._place(i, positions, beside)}
            found.append(self[i].weights(x, mask, memory, memory_mask, **more))
            x = self[i](x, mask, memory, memory_mask, **more)
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
        positions: Tensor | None = None,
        beside: Beside = NOTHING,
    ) -> Tensor:
        """Return x and the output of every layer, L + 1 in all: `_ B T D`."""
        found, bias = [x], biased(self.relative_bias, x, None, mask, bias)
        for i in range(len(self)):
            more = {"bias": bias, "memory_bias": memory_bias, "place": self._place(i, positions, beside)}
            found.append(self[i](found[-1], mask, memory, memory_mask, **more))
        return torch.stack(found)

    def routed(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
        beside: Beside = NOTHING,
    ) -> tuple[Tensor, Tensor]:
        """Apply every layer of a stack with mixtures of experts and without a memory; return router logits `L B T E` too."""
        found, bias = [], biased(self.relative_bias, x, None, mask, bias)
        for i in range(len(self)):
            x, logits = self[i].routed(x, mask, bias=bias, place=self._place(i, positions, beside))
            found.append(logits)
        return x, torch.stack(found)

    def _place(self, i: int, positions: Tensor | None, beside: Beside) -> Place:
        distances = None if self.distances is None else self.distances()
        windowed, rotated = (None if kind is None else kind[i] for kind in self.kinds)
        embedding = None if beside.embeddings is None else beside.embeddings[i]
        return Place(positions, windowed, rotated, distances, embedding, beside.read)


def _of_layer(all_layers: KeysValues, i: int) -> KeysValues:
    values = None if all_layers.values is None else all_layers.values[i]
    return KeysValues(all_layers.keys[i], values, all_layers.heads)
