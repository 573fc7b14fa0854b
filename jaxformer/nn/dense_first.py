"""Stack whose first layers are dense: their feed-forward layer is no mixture of experts (DeepSeek)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxformer.config.dense_layers import dense_blocks, sparse_blocks
from jaxformer.config.models import GPTConfig
from jaxformer.nn.blocks import AttentionWeights, Block
from jaxformer.nn.cache import KVCache
from jaxformer.nn.dropout import split_key
from jaxformer.nn.stack import Stack


class DenseFirstStack(nnx.Module):
    """Two stacks, one after the other: dense layers, and layers with experts; `stack[i]` is layer i of both."""

    def __init__(self, config: GPTConfig, *, causal: bool = False):
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
        x: Float[Array, "B T D"],
        cache: KVCache | None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """Apply every layer; return the output and the cache with x in it."""
        keys, first, last = split_key(key, 2), None, None
        if cache is not None:
            first, last = cache.split(len(self.dense))
        x, first = self.dense.extend(x, first, mask, key=keys[0], bias=bias, positions=positions)
        x, last = self.sparse.extend(x, last, mask, key=keys[1], bias=bias, positions=positions)
        return x, None if first is None or last is None else first.join(last)

    def weights(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
    ) -> AttentionWeights:
        """Return the attention weights of every layer."""
        first = self.dense.weights(x, mask, bias=bias, positions=positions)
        x = self.dense(x, mask, bias=bias, positions=positions)
        last = self.sparse.weights(x, mask, bias=bias, positions=positions)
        return AttentionWeights(jnp.concatenate([first.own, last.own]), None)

    def hidden_states(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
    ) -> Float[Array, "_ B T D"]:
        """Return x and the output of every layer, L + 1 in all."""
        first = self.dense.hidden_states(x, mask, bias=bias, positions=positions)
        return jnp.concatenate([first[:-1], self.sparse.hidden_states(first[-1], mask, bias=bias, positions=positions)])

    def routed(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Int[Array, "#B T"] | None = None,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "_ B T E"]]:
        """Apply every layer; return the router logits of the layers that have them too."""
        keys = split_key(key, 2)
        x = self.dense(x, mask, key=keys[0], bias=bias, positions=positions)
        return self.sparse.routed(x, mask, keys[1], bias=bias, positions=positions)


def make_stack(config: GPTConfig, *, causal: bool = False) -> Stack | DenseFirstStack:
    """Build the stack of a decoder."""
    return (DenseFirstStack if config.dense_layers else Stack)(config, causal=causal)
