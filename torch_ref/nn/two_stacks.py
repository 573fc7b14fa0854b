"""Stack whose first layers are not as the others: without experts (DeepSeek), or a norm before attention (ModernBERT)."""

import torch
from torch import Tensor, nn

from jaxformer.config.first_layers import first_blocks, other_blocks
from jaxformer.config.models import EncoderConfig, GPTConfig
from torch_ref.nn.blocks import AttentionWeights, Block
from torch_ref.nn.cache import KVCache
from torch_ref.nn.stack import Stack


class TwoStacks(nn.Module):
    """Two stacks, one after the other: the first layers, and the rest; `stack[i]` is layer i of both."""

    def __init__(self, config: GPTConfig | EncoderConfig, *, causal: bool = False):
        super().__init__()
        self.n_layers = config.n_layers
        self.first = Stack(first_blocks(config), causal=causal, attention_norm=config.first_attention_norm)
        self.rest = Stack(other_blocks(config), causal=causal)

    def __getitem__(self, i: int) -> Block:
        if not -self.n_layers <= i < self.n_layers:
            raise IndexError(f"layer {i} of a stack of {self.n_layers}")
        i = i % self.n_layers - len(self.first)
        return self.rest[i] if i >= 0 else self.first[i]

    def __len__(self) -> int:
        return self.n_layers

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Apply every layer."""
        return self.extend(x, None, mask, bias=bias, positions=positions)[0]

    def extend(
        self,
        x: Tensor,
        cache: KVCache | None,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, KVCache | None]:
        """Apply every layer; return the output and the cache with x in it."""
        first, last = None, None
        if cache is not None:
            first, last = cache.split(len(self.first))
        x, first = self.first.extend(x, first, mask, bias=bias, positions=positions)
        x, last = self.rest.extend(x, last, mask, bias=bias, positions=positions)
        return x, None if first is None or last is None else first.join(last)

    def weights(
        self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, positions: Tensor | None = None
    ) -> AttentionWeights:
        """Return the attention weights of every layer."""
        first = self.first.weights(x, mask, bias=bias, positions=positions)
        x = self.first(x, mask, bias=bias, positions=positions)
        last = self.rest.weights(x, mask, bias=bias, positions=positions)
        return AttentionWeights(torch.cat([first.own, last.own]), None)

    def hidden_states(
        self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Return x and the output of every layer, L + 1 in all: `_ B T D`."""
        first = self.first.hidden_states(x, mask, bias=bias, positions=positions)
        return torch.cat([first[:-1], self.rest.hidden_states(first[-1], mask, bias=bias, positions=positions)])

    def routed(
        self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Apply every layer; return the router logits of the layers that have them too: `_ B T E`."""
        x = self.first(x, mask, bias=bias, positions=positions)
        return self.rest.routed(x, mask, bias=bias, positions=positions)


def make_stack(config: GPTConfig | EncoderConfig, *, causal: bool = False) -> Stack | TwoStacks:
    """Build the stack of a decoder, or of an encoder."""
    if 0 < config.first_layers < config.n_layers:
        return TwoStacks(config, causal=causal)
    return Stack(config, causal=causal, attention_norm=config.first_attention_norm)
