"""Transformer block: attention, cross-attention if there is a memory, and feed-forward, each with residual connection
and norm.
"""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.layer_kinds import Sharing
from jaxformer.nn.attention import Memory, MultiHeadAttention
from jaxformer.nn.cache import LayerCache
from jaxformer.nn.dropout import dropout, split_key
from jaxformer.nn.experts import MixtureOfExperts, make_feed_forward
from jaxformer.nn.latent_attention import make_attention
from jaxformer.nn.layer_embeddings import LayerInput
from jaxformer.nn.norms import AnyNorm, make_norm
from jaxformer.nn.place import IN_ORDER, Place, embedding_of
from jaxformer.nn.positions import RelativeBias, biased
from jaxformer.validation.inputs import check_attended


class AttentionWeights(NamedTuple):
    """Attention weights of a block, for plotting; those of a stack have a leading layer axis."""

    own: Float[Array, "*L B N T S"]
    """Self-attention: weights of each token on the tokens of its own sequence."""
    cross: Float[Array, "*L B N T S"] | None
    """Cross-attention: weights of each token on the memory; None without cross-attention."""


class LayerScale(nnx.Module):
    """scale * x, unit by unit (Touvron et al. 2021, equation 4); if it is not `trained`, no gradient reaches the scale."""

    def __init__(self, width: int, *, trained: bool = True):
        self.trained = trained
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))

    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        scale = self.scale[...] if self.trained else jax.lax.stop_gradient(self.scale[...])
        return x * scale.reshape((1,) * (x.ndim - 1) + (-1,))


class Block(nnx.Module):
    """Pre-norm: x + dropout(f(norm(x))). Post-norm: norm(x + dropout(f(x))). Sandwich: x + dropout(output_norm(f(norm(x)))).
    Output norm: x + dropout(output_norm(f(x))).

    With `parallel_residual`, attention and the feed-forward layer read the same x, and with `shared_norm` the same norm of it.
    `sharing` says whose keys and values attention reads.
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
        self.pre, self.parallel, self.shared = config.norm_position != "post", config.parallel_residual, config.shared_norm
        self.multiplier = config.residual_multiplier
        norm, behind = (
            config.norm if config.norm_position != "output" else "none",
            config.norm_position in ("sandwich", "output"),
        )
        self.dropout_rate = config.residual_dropout
        self.attention_norm = make_norm(norm if attention_norm else "none", config)
        self.relative_bias = RelativeBias(config, causal=causal) if config.relative_per_layer else None
        self.attention = make_attention(config, causal=causal, sharing=sharing)
        self.attention_output_norm = make_norm(config.norm, config) if behind else None
        self.cross_attention_norm = make_norm(norm if cross else "none", config)
        self.cross_attention = MultiHeadAttention(config, cross=True) if cross else None
        self.cross_attention_output_norm = make_norm(config.norm, config) if behind and cross else None
        apart = config.d_ff and not self.shared and not config.expert_norms  # experts have norms of their own
        self.feed_forward_norm = make_norm(norm if apart else "none", config)
        self.feed_forward = make_feed_forward(config) if config.d_ff else None
        self.feed_forward_output_norm = make_norm(config.norm, config) if behind and config.d_ff else None
        scaled = config.layer_scale is not None
        self.attention_layer_scale = LayerScale(config.d_model) if scaled else None
        self.cross_attention_layer_scale = LayerScale(config.d_model) if scaled and cross else None
        self.feed_forward_layer_scale = LayerScale(config.d_model) if scaled and config.d_ff else None
        self.layer_input = LayerInput(config) if config.layer_embedding else None
        self.output_scale = LayerScale(1, trained=False) if config.output_scale else None

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
        place: Place = IN_ORDER,
    ) -> Float[Array, "B T D"]:
        """Apply the block. Masks (`B N|1 T S`, True = may attend) hide keys; biases of that shape are added to the scores."""
        return self.extend(x, None, mask, memory, memory_mask, key, bias=bias, memory_bias=memory_bias, place=place)[0]

    def extend(
        self,
        x: Float[Array, "B T D"],
        cache: LayerCache | None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        memory: Memory | None = None,
        memory_mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        memory_bias: Float[Array, "_ _ _ _"] | None = None,
        place: Place = IN_ORDER,
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        """Return the output for x after the cached tokens, and the cache with x added."""
        check_attended(self.attention.heads, x, cache, (mask, bias), memory, (memory_mask, memory_bias))
        keys = split_key(key, 6)
        given = x
        x, read, cache = self._attend(x, cache, mask, bias, keys[:2], place)
        if self.cross_attention is not None:
            y = self._before(self.cross_attention_norm, x)
            y = self.cross_attention(y, memory, memory_mask, keys[2], bias=memory_bias)
            y = _scaled(self.cross_attention_layer_scale, y)
            x = self._after(self.cross_attention_norm, self.cross_attention_output_norm, x, y, keys[3])
        if self.feed_forward is not None:
            y = read if self.shared else self._before(self.feed_forward_norm, given if self.parallel else x)
            y = _scaled(self.feed_forward_layer_scale, self.feed_forward(y, keys[4]))
            x = self._after(self.feed_forward_norm, self.feed_forward_output_norm, x, y, keys[5])
        return self._behind(x, place), cache

    def routed(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        key: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        place: Place = IN_ORDER,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B T E"]]:
        """Apply a block with a mixture of experts and without cross-attention; return the router's logits too."""
        keys, given = split_key(key, 6), x
        x, read, _ = self._attend(x, None, mask, bias, keys[:2], place)
        y = read if self.shared else self._before(self.feed_forward_norm, given if self.parallel else x)
        y, logits = cast(MixtureOfExperts, self.feed_forward).routed(y)
        y = _scaled(self.feed_forward_layer_scale, y)
        x = self._after(self.feed_forward_norm, self.feed_forward_output_norm, x, y, keys[5])
        return self._behind(x, place), logits

    def weights(
        self,
        x: Float[Array, "B T D"],
        mask: Bool[Array, "_ _ _ _"] | None = None,
        memory: Memory | None = None,
        memory_mask: Bool[Array, "_ _ _ _"] | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        memory_bias: Float[Array, "_ _ _ _"] | None = None,
        place: Place = IN_ORDER,
    ) -> AttentionWeights:
        """Return the attention weights for x."""
        check_attended(self.attention.heads, x, None, (mask, bias), memory, (memory_mask, memory_bias))
        read, own_bias = self._before(self.attention_norm, x), biased(self.relative_bias, x, None, mask, bias)
        own = self.attention.weights(read, mask=mask, bias=own_bias, place=place)
        if self.cross_attention is None:
            return AttentionWeights(own, None)
        x, _, _ = self._attend(x, None, mask, bias, [None, None], place)
        y = self._before(self.cross_attention_norm, x)
        return AttentionWeights(own, self.cross_attention.weights(y, memory, memory_mask, bias=memory_bias))

    def _attend(
        self,
        x: Array,
        cache: LayerCache | None,
        mask: Array | None,
        bias: Array | None,
        keys: list[PRNGKeyArray | None],
        place: Place,
    ) -> tuple[Array, Array, LayerCache | None]:
        """Return x with attention's output added, what attention read, and the cache."""
        read = self._before(self.attention_norm, x)
        bias = biased(self.relative_bias, x, cache, mask, bias)
        y, cache = self.attention.extend(read, cache, mask=mask, rng=keys[0], bias=bias, place=place)
        y = _scaled(self.attention_layer_scale, y)
        return self._after(self.attention_norm, self.attention_output_norm, x, y, keys[1]), read, cache

    def _behind(self, x: Array, place: Place) -> Array:
        """Return the output: x with what a gate lets through of the layer's embeddings, times the output's factor."""
        x = x if self.layer_input is None else x + self.layer_input(x, embedding_of(place)).astype(x.dtype)
        return _scaled(self.output_scale, x)

    def _before(self, norm: AnyNorm, x: Array) -> Array:
        return norm(x) if self.pre else x

    def _after(self, norm: AnyNorm, output_norm: AnyNorm | None, x: Array, y: Array, key: PRNGKeyArray | None) -> Array:
        y = y if output_norm is None else output_norm(y)
        y = dropout(y, self.dropout_rate, key).astype(x.dtype)
        x = x + (y if self.multiplier == 1 else self.multiplier * y)
        return x if self.pre else norm(x)


def _scaled(scale: LayerScale | None, y: Array) -> Array:
    return y if scale is None else scale(y)
