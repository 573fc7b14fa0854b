"""Stack whose first layers are dense: their feed-forward layer is no mixture of experts (DeepSeek)."""

import torch
from torch import Tensor, nn

from jaxformer.config.dense_layers import dense_blocks, sparse_blocks
from jaxformer.config.models import GPTConfig
from torch_ref.nn.blocks import AttentionWeights, Block
from torch_ref.nn.cache import KVCache
from torch_ref.nn.stack import Stack


class DenseFirstStack(nn.Module):
    """Two stacks, one after the other: dense layers, and layers with experts; `stack[i]` is layer i of both."""

    def __init__(self, config: GPTConfig, *, causal: bool = False):
        super().__init__()
        self.n_layers = config.n_layers
        self.dense = Stack(dense_blocks(config), causal=causal)
        self.sparse = Stack(sparse_blocks(config), causal=causal)

    def __getitem__(self, i: int) -> Block:
        if not -self.n_layers <= i < self.n_layers:
            raise IndexError(f"layer {i} of a stack of {self.n_layers}")
        i = i % self.n_layers - len(self.dense)
        return self.sparse[i] if i >= 0 else self.dense[i]

    def __len__(self) -> int:
        return self.n_layers

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
            first, last = cache.split(len(self.dense))
        x, first = self.dense.extend(x, first, mask, bias=bias, positions=positions)
        x, last = self.sparse.extend(x, last, mask, bias=bias, positions=positions)
        return x, None if first is None or last is None else first.join(last)

    def weights(
        self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, positions: Tensor | None = None
    ) -> AttentionWeights:
        """Return the attention weights of every layer."""
        first = self.dense.weights(x, mask, bias=bias, positions=positions)
        x = self.dense(x, mask, bias=bias, positions=positions)
        last = self.sparse.weights(x, mask, bias=bias, positions=positions)
        return AttentionWeights(torch.cat([first.own, last.own]), None)

    def hidden_states(
        self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Return x and the output of every layer, L + 1 in all: `_ B T D`."""
        first = self.dense.hidden_states(x, mask, bias=bias, positions=positions)
        return torch.cat([first[:-1], self.sparse.hidden_states(first[-1], mask, bias=bias, positions=positions)])

    def routed(
        self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Apply every layer; return the router logits of the layers that have them too: `_ B T E`."""
        x = self.dense(x, mask, bias=bias, positions=positions)
        return self.sparse.routed(x, mask, bias=bias, positions=positions)


def make_stack(config: GPTConfig, *, causal: bool = False) -> Stack | DenseFirstStack:
    """Build the stack of a decoder."""
    return (DenseFirstStack if config.dense_layers else Stack)(config, causal=causal)
