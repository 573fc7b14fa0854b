"""Transformer block: attention, cross-attention if there is a memory, and feed-forward, each with residual connection
and norm.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.layer_kinds import Sharing
from jaxformer.validation.inputs import check_attended
from torch_ref.nn.attention import Memory, MultiHeadAttention
from torch_ref.nn.cache import LayerCache
from torch_ref.nn.experts import MixtureOfExperts, make_feed_forward
from torch_ref.nn.latent_attention import make_attention
from torch_ref.nn.layer_embeddings import LayerInput
from torch_ref.nn.norms import make_norm
from torch_ref.nn.place import IN_ORDER, Place, embedding_of
from torch_ref.nn.positions import RelativeBias, biased


class AttentionWeights(NamedTuple):
    """Attention weights of a block, for plotting; those of a stack have a leading layer axis."""

    own: Tensor
    """Self-attention: weights of each token on the tokens of its own sequence."""
    cross: Tensor | None
    """Cross-attention: weights of each token on the memory; None without cross-attention."""


class LayerScale(nn.Module):
    """weight * x, unit by unit (Touvron et al. 2021, equation 4); if it is not `trained`, no gradient reaches the weight."""

    def __init__(self, width: int, *, trained: bool = True):
        super().__init__()
        self.trained = trained
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight if self.trained else self.weight.detach())


class Block(nn.Module):
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
        super().__init__()
        self.pre, self.parallel, self.shared = config.norm_position != "post", config.parallel_residual, config.shared_norm
        self.multiplier = config.residual_multiplier
        norm, behind = (
            config.norm if config.norm_position != "output" else "none",
            config.norm_position in ("sandwich", "output"),
        )
        self.dropout = nn.Dropout(config.residual_dropout)
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

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        memory_mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
        place: Place = IN_ORDER,
    ) -> Tensor:
        """Apply the block. Masks (`B N|1 T S`, True = may attend) hide keys; biases of that shape are added to the scores."""
        return self.extend(x, None, mask, memory, memory_mask, bias=bias, memory_bias=memory_bias, place=place)[0]

    def extend(
        self,
        x: Tensor,
        cache: LayerCache | None,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        memory_mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
        place: Place = IN_ORDER,
    ) -> tuple[Tensor, LayerCache | None]:
        """Return the output for x after the cached tokens, and the cache with x added."""
        check_attended(self.attention.heads, x, cache, (mask, bias), memory, (memory_mask, memory_bias))
        given = x
        x, read, cache = self._attend(x, cache, mask, bias, place)
        if self.cross_attention is not None:
            y = self._before(self.cross_attention_norm, x)
            y = self.cross_attention(y, memory, memory_mask, bias=memory_bias)
            y = _scaled(self.cross_attention_layer_scale, y)
            x = self._after(self.cross_attention_norm, self.cross_attention_output_norm, x, y)
        if self.feed_forward is not None:
            y = read if self.shared else self._before(self.feed_forward_norm, given if self.parallel else x)
            y = _scaled(self.feed_forward_layer_scale, self.feed_forward(y))
            x = self._after(self.feed_forward_norm, self.feed_forward_output_norm, x, y)
        return self._behind(x, place), cache

    def routed(
        self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, place: Place = IN_ORDER
    ) -> tuple[Tensor, Tensor]:
        """Apply a block with a mixture of experts and without cross-attention; return the router's logits too."""
        given = x
        x, read, _ = self._attend(x, None, mask, bias, place)
        y = read if self.shared else self._before(self.feed_forward_norm, given if self.parallel else x)
        y, logits = cast(MixtureOfExperts, self.feed_forward).routed(y)
        y = _scaled(self.feed_forward_layer_scale, y)
        return self._behind(self._after(self.feed_forward_norm, self.feed_forward_output_norm, x, y), place), logits

    def weights(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        memory: Memory | None = None,
        memory_mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        memory_bias: Tensor | None = None,
        place: Place = IN_ORDER,
    ) -> AttentionWeights:
        """Return the attention weights for x."""
        check_attended(self.attention.heads, x, None, (mask, bias), memory, (memory_mask, memory_bias))
        read, own_bias = self._before(self.attention_norm, x), biased(self.relative_bias, x, None, mask, bias)
        own = self.attention.weights(read, mask=mask, bias=own_bias, place=place)
        if self.cross_attention is None:
            return AttentionWeights(own, None)
        x, _, _ = self._attend(x, None, mask, bias, place)
        y = self._before(self.cross_attention_norm, x)
        return AttentionWeights(own, self.cross_attention.weights(y, memory, memory_mask, bias=memory_bias))

    def _attend(
        self, x: Tensor, cache: LayerCache | None, mask: Tensor | None, bias: Tensor | None, place: Place
    ) -> tuple[Tensor, Tensor, LayerCache | None]:
        """Return x with attention's output added, what attention read, and the cache."""
        read = self._before(self.attention_norm, x)
        bias = biased(self.relative_bias, x, cache, mask, bias)
        y, cache = self.attention.extend(read, cache, mask=mask, bias=bias, place=place)
        y = _scaled(self.attention_layer_scale, y)
        return self._after(self.attention_norm, self.attention_output_norm, x, y), read, cache

    def _behind(self, x: Tensor, place: Place) -> Tensor:
        """Return the output: x with what a gate lets through of the layer's embeddings, times the output's factor."""
        x = x if self.layer_input is None else x + self.layer_input(x, embedding_of(place))
        return _scaled(self.output_scale, x)

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.pre else x

    def _after(self, norm: nn.Module, output_norm: nn.Module | None, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.multiplier * self.dropout(y if output_norm is None else output_norm(y))
        return x if self.pre else norm(x)


def _scaled(scale: LayerScale | None, y: Tensor) -> Tensor:
    return y if scale is None else scale(y)
