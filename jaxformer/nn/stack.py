"""L blocks kept as one block whose leaves have a leading layer axis."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxformer.config import BlockConfig
from jaxformer.inputs import check_cache
from jaxformer.nn.attention import Memory, MultiHeadAttention
from jaxformer.nn.blocks import AttentionWeights, Block
from jaxformer.nn.cache import KeysValues, KVCache

DEEPEST_UNROLLED = 12
"""Unrolled, a step is a quarter faster on CPU; beyond this depth compile time outweighs it."""


@partial(jax.jit, static_argnames=("step", "unroll"))
def scan_layers(step: Callable[..., Any], carry: PyTree, layers: PyTree, shared: PyTree, unroll: int = 1) -> tuple[Any, Any]:
    """`carry, output = step(carry, layer, shared)` for each layer in turn; outputs come stacked.

    `step` is one function of a module, never a closure: JAX knows a function that it has compiled by its identity, so that
    a stack called without jit compiles once.
    """
    return jax.lax.scan(lambda carry, layer: step(carry, layer, shared), carry, layers, unroll=unroll)


def _extend(carry: PyTree, layer: PyTree, shared: PyTree) -> tuple[PyTree, None]:
    (x, cache), (block, key, remembered), (mask, states, memory_mask) = carry, layer, shared
    return block.extend(x, cache, mask, states if remembered is None else remembered, memory_mask, key), None


_EXTEND_REMAT = jax.checkpoint(_extend)


def _remember(carry: None, block: Block, memory: Array) -> tuple[None, KeysValues]:
    return None, cast(MultiHeadAttention, block.cross_attention).keys_values(memory)


def _weights(x: Array, block: Block, shared: PyTree) -> tuple[Array, AttentionWeights]:
    return block(x, *shared), block.weights(x, *shared)


class Stack(nnx.Module):
    """Few leaves keep dispatch cheap; a scan keeps compile time flat. `stack[i]` is layer i."""

    def __init__(self, config: BlockConfig, *, cross: bool = False):
        self.n_layers = config.n_layers
        self.layers = config.layers
        self.remat = config.remat
        self.blocks = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (config.n_layers, *leaf.shape)), Block(config, cross=cross)
        )

    def __getitem__(self, i: int) -> Block:
        if not -self.n_layers <= i < self.n_layers:
            raise IndexError(f"layer {i} of a stack of {self.n_layers}")
        return jax.tree.map(lambda leaf: leaf[i], self.blocks)

    def __len__(self) -> int:
        return self.n_layers

    @property
    def unrolled(self) -> bool:
        """Whether the layers are laid out one by one in the compiled program."""
        if self.layers == "auto":
            return jax.default_backend() == "cpu" and self.n_layers <= DEEPEST_UNROLLED
        return self.layers == "unrolled"

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        memory: Memory | None = None,
        memory_mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T D"]:
        return self.extend(x, None, mask, memory, memory_mask, key)[0]

    def extend(
        self,
        x: Float[Array, "B T D"],
        cache: KVCache | None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        memory: Memory | None = None,
        memory_mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """Every layer in turn; the cache comes back with x in it. The memory is a source's states, or `remember` of them."""
        keys = None if key is None else jax.random.split(key, self.n_layers)
        states, remembered = (None, memory) if isinstance(memory, KeysValues) else (memory, None)
        if cache is not None:
            check_cache((cache.keys.shape[0], cache.keys.shape[1]), (self.n_layers, x.shape[0]))
        step = _EXTEND_REMAT if self.remat else _extend
        layers, shared = (self.blocks, keys, remembered), (mask, states, memory_mask)
        (after, cache), _ = scan_layers(step, (x, cache), layers, shared, self.n_layers if self.unrolled else 1)
        return after, None if cache is None else cache.advance(x.shape[1])

    def remember(self, memory: Float[Array, "B S D"]) -> KeysValues:
        """Every layer's keys and values of a memory, which stay the same from token to token."""
        return scan_layers(_remember, None, self.blocks, memory)[1]

    def weights(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        memory: Float[Array, "B S D"] | None = None,
        memory_mask: Bool[Array, "_ _ _ _"] | None = None,
    ) -> AttentionWeights:
        """The attention weights of every layer."""
        return scan_layers(_weights, x, self.blocks, (mask, memory, memory_mask))[1]
