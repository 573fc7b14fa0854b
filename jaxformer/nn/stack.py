"""Stack of L blocks, kept as one block whose leaves have a leading layer axis."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.layer_kinds import Sharing
from jaxformer.nn.attention import Memory, MultiHeadAttention, Source
from jaxformer.nn.blocks import AttentionWeights, Block
from jaxformer.nn.cache import KeysValues, KVCache, LayerCache
from jaxformer.nn.disentangled import DistanceEncoding
from jaxformer.nn.place import NOTHING, Beside, Place
from jaxformer.nn.positions import biased, make_bias
from jaxformer.nn.rotary import Positions
from jaxformer.parallel.placement import along_rows
from jaxformer.pytree import is_apart, layer_of
from jaxformer.runtime.random import split
from jaxformer.validation.arrays import check_not_torch
from jaxformer.validation.inputs import check_attended, check_cache

DEEPEST_UNROLLED = 12
"""Deepest stack that is unrolled: a step is a quarter faster, on a GPU too; for deeper stacks compile time outweighs that."""


REMAT: dict[str, Callable[..., bool]] = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_with_no_batch_dims": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@partial(jax.jit, static_argnames=("step", "unroll", "remat"))
def scan_layers(
    step: Callable[..., Any],
    carry: PyTree,
    layers: list[Any],
    shared: PyTree,
    *,
    unroll: int = 1,
    remat: str | None = None,
) -> tuple[Any, Any]:
    """Run `carry, output = step(carry, layer, shared)` for each layer in turn; outputs are stacked or apart, as the layers are.

    `layers` is what each layer has of its own. `unroll` is the number of layers per turn of the loop.
    `remat` names what is saved for the backward pass, which recomputes the rest; None: all that it needs is saved. `step` is a
    function of a module, never a closure: JAX recognises a compiled function by its identity, so that a stack called without
    jit compiles once.
    """

    def run(carry: PyTree, layer: PyTree) -> tuple[PyTree, PyTree]:
        return step(along_rows(carry), layer, shared)

    first = jax.tree.leaves(layers[0], is_leaf=is_apart)[0]
    if is_apart(first):
        outputs = []
        for i in range(len(first)):
            carry, output = run(carry, layer_of(layers, i))
            outputs.append(output)
        return carry, jax.tree.map(lambda *each: each, *outputs)
    layers = jax.tree.map(lambda leaf: jnp.stack(leaf) if is_apart(leaf) else leaf, layers, is_leaf=is_apart)
    return jax.lax.scan(run if remat is None else jax.checkpoint(run, policy=REMAT[remat]), carry, layers, unroll=unroll)


def _extend(carry: Array, layer: list[Any], shared: dict[str, Any]) -> tuple[Array, KeysValues | None]:
    block, kind, key, remembered, held = layer
    shared = _in_layer(shared, kind)
    length = shared.pop("length")
    if remembered is not None:
        shared["memory"] = remembered
    held = shared["place"].read if held is None else held
    x, cache = block.extend(carry, None if length is None else LayerCache(held, length), key=key, **shared)
    return x, None if cache is None else cache.held


def _in_layer(shared: dict[str, Any], kind: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of one layer, with its positions and its kind as its place."""
    shared = dict(shared)
    own: dict[str, Any] = {name: shared.pop(name) for name in ("positions", "distances", "read")}
    return shared | {"place": Place(**own, **kind)}


def _remember(carry: None, layer: list[Any], memory: Source) -> tuple[None, KeysValues]:
    return None, cast(MultiHeadAttention, layer[0].cross_attention).keys_values(memory)


def _weights(x: Array, layer: list[Any], shared: dict[str, Any]) -> tuple[Array, AttentionWeights]:
    block, kind = layer
    shared = _in_layer(shared, kind)
    return block(x, **shared), block.weights(x, **shared)


def _hidden_states(x: Array, layer: list[Any], shared: dict[str, Any]) -> tuple[Array, Array]:
    block, kind = layer
    x = block(x, **_in_layer(shared, kind))
    return x, x


def _routed(x: Array, layer: list[Any], shared: dict[str, Any]) -> tuple[Array, Array]:
    block, kind, key = layer
    return block.routed(x, key=key, **_in_layer(shared, kind))


class Stack(nnx.Module):
    """Stack of blocks; `stack[i]` is layer i. Few leaves keep dispatch cheap; a scan keeps compile time flat. With
    `shared_layers` there is one block, and the layer axis of its leaves has size 1.

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
        self.n_layers = config.n_layers
        self.layers = config.layers
        self.held = config.cached_heads
        self.remat = config.remat_policy if config.remat else None
        self.kinds = config.windowed_layers, config.rotated_layers
        self.distances = DistanceEncoding(config) if config.relative_bias == "disentangled" else None
        self.relative_bias = make_bias(config, causal=causal)
        self.shared, self.routes = config.shared_layers, config.n_experts > 0
        held = 1 if config.shared_layers else config.n_layers
        block = Block(config, cross=cross, causal=causal, attention_norm=attention_norm, sharing=sharing)
        self.blocks = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (held, *leaf.shape)), block)

    def __getitem__(self, i: int) -> Block:
        if not -self.n_layers <= i < self.n_layers:
            raise IndexError(f"layer {i} of a stack of {self.n_layers}")
        return layer_of(self.blocks, 0 if self.shared else i)

    def __len__(self) -> int:
        return self.n_layers

    @property
    def unroll(self) -> int:
        """Number of layers per turn of the compiled loop; there is no loop if that is all of them.

        Under jax.jit alone XLA's CPU backend keeps what an unrolled loop was asked to recompute: `remat` needs a loop.
        """
        if self.layers == "auto":
            return 1 if self.remat or self.n_layers > DEEPEST_UNROLLED else self.n_layers
        return self.n_layers if self.layers == "unrolled" else 1

    def __call__(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        memory: Memory | None = None,
        memory_mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        memory_bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Positions | None = None,
        beside: Beside = NOTHING,
    ) -> Float[Array, "B T D"]:
        """Apply every layer. Masks (`B N|1 T S`, True = may attend) hide keys; biases of that shape are added to the scores."""
        more = {"bias": bias, "memory_bias": memory_bias, "positions": positions, "beside": beside}
        return self.extend(x, None, mask, memory, memory_mask, key, **more)[0]

    def extend(
        self,
        x: Float[Array, "B T D"],
        cache: KVCache | None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        memory: Memory | None = None,
        memory_mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        memory_bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Positions | None = None,
        beside: Beside = NOTHING,
    ) -> tuple[Float[Array, "B T D"], KVCache | None]:
        """Apply every layer; return the output and the cache with x in it.

        `memory` is the states of a source, or the result of `remember`. `positions` are rotary positions; None: 0, 1, 2, ...,
        counted on from the cached tokens.
        """
        held, length = None, None if cache is None else cache.length
        if cache is not None and beside.read is None:
            for shape in cache.shapes:
                check_cache(shape, (self.n_layers, x.shape[0], *self.held))
            held = jax.tree.map(lambda *each: each, *cache.layers)
        keys = None if key is None else split(key, self.n_layers)
        states, remembered = (None, memory) if isinstance(memory, KeysValues) else (memory, None)
        shared = self._shared(x, cache, mask, memory, memory_mask, bias, memory_bias, positions, beside) | {"memory": states}
        layers = [self._every(), self._kinds(beside), keys, remembered, held]
        # A cache is filled once, which does not win back the time to compile unrolled layers.
        unroll = self.unroll if cache is None else 1
        after, held = scan_layers(_extend, x, layers, shared | {"length": length}, unroll=unroll, remat=self.remat)
        if held is None:
            return after, None
        kept = tuple(layer_of(held, i) for i in range(self.n_layers))
        return after, KVCache(kept, jnp.asarray(x.shape[1])) if cache is None else cache.advance(kept, x.shape[1])

    def remember(self, memory: Source) -> KeysValues:
        """Compute every layer's keys and values of a memory, which stay the same from token to token."""
        return jax.tree.map(tuple, scan_layers(_remember, None, [self._every()], memory)[1], is_leaf=is_apart)

    def weights(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        memory: Source | None = None,
        memory_mask: Bool[Array, "_ _ _ _"] | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        memory_bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Positions | None = None,
        beside: Beside = NOTHING,
    ) -> AttentionWeights:
        """Return the attention weights of every layer."""
        shared = self._shared(x, None, mask, memory, memory_mask, bias, memory_bias, positions, beside)
        return scan_layers(_weights, x, [self._every(), self._kinds(beside)], shared)[1]

    def hidden_states(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        memory: Source | None = None,
        memory_mask: Bool[Array, "_ _ _ _"] | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        memory_bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Positions | None = None,
        beside: Beside = NOTHING,
    ) -> Float[Array, "_ B T D"]:
        """Return x and the output of every layer, L + 1 in all."""
        shared = self._shared(x, None, mask, memory, memory_mask, bias, memory_bias, positions, beside)
        states = scan_layers(_hidden_states, x, [self._every(), self._kinds(beside)], shared)[1]
        return jnp.concatenate([x[None], states])

    def routed(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        positions: Positions | None = None,
        beside: Beside = NOTHING,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "L B T E"]]:
        """Apply every layer of a stack with mixtures of experts and without a memory; return all router logits too."""
        keys = None if key is None else split(key, self.n_layers)
        shared = self._shared(x, None, mask, None, None, bias, None, positions, beside)
        shared = {name: shared[name] for name in ("mask", "bias", "positions", "distances", "read")}
        layers = [self._every(), self._kinds(beside), keys]
        return scan_layers(_routed, x, layers, shared, unroll=self.unroll, remat=self.remat)

    def _every(self) -> Block:
        """Return the blocks of all layers: with shared parameters, the one block as often."""
        if not self.shared:
            return self.blocks
        return jax.tree.map(
            lambda leaf: leaf * self.n_layers if is_apart(leaf) else jnp.repeat(leaf, self.n_layers, 0),
            self.blocks,
            is_leaf=is_apart,
        )

    def _kinds(self, beside: Beside) -> dict[str, Array | None]:
        """Return for each layer if it has the sliding window and rotary positions (None: no pattern), and its embeddings."""
        windowed, rotated = (None if kind is None else jnp.asarray(kind) for kind in self.kinds)
        return {"windowed": windowed, "rotated": rotated, "embedding": beside.embeddings}

    def _shared(
        self,
        x: Array,
        cache: KVCache | None,
        mask: Any,
        memory: Any,
        memory_mask: Any,
        bias: Any,
        memory_bias: Any,
        positions: Any,
        beside: Beside,
    ) -> dict[str, Any]:
        """Check and return the arguments that every layer is given; the bias includes a relative bias of all layers."""
        check_not_torch(mask=mask, bias=bias, memory_mask=memory_mask, memory_bias=memory_bias, positions=positions)
        heads = self.blocks.attention.heads
        check_attended(heads, x, cache, (mask, bias), memory, (memory_mask, memory_bias))
        bias = biased(self.relative_bias, x, cache, mask, bias)
        own = {"mask": mask, "bias": bias, "positions": positions if self.blocks.attention.rotary is not None else None}
        own |= {"distances": None if self.distances is None else self.distances(), "read": beside.read}
        return own | {"memory": memory, "memory_mask": memory_mask, "memory_bias": memory_bias}
