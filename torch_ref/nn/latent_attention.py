"""Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1 and appendix C)."""

from typing import cast

import torch
from torch import Tensor, nn

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.layer_kinds import Sharing
from torch_ref.nn.attention import (
    IN_ORDER,
    AttentionInputs,
    MultiHeadAttention,
    Place,
    Scoring,
    attention,
    attention_weights,
)
from torch_ref.nn.cache import LayerCache, merge_heads, split_heads
from torch_ref.nn.norms import ScaledNorm
from torch_ref.nn.rotary import Rotary, make_rotary, rotate


class LatentAttention(nn.Module):
    """Multi-head attention whose keys and values are projected from one latent of each token, of width R.

    The last P units of a head are rotated; their key is projected from the token and is the same for all heads. The other units
    have keys made of the latent. A cache holds the latent and the rotated key, R + P numbers a token.

    Expanded form: keys and values of every head are made of the latents. Absorbed form: q (W c) = (q W) c, so that queries are
    projected in place of keys, and what is gathered of the latents in place of values: attention with one head of keys, R + P
    wide, which are values too. Both forms give the same numbers but for rounding.
    """

    def __init__(self, config: BlockConfig, *, causal: bool = False):
        super().__init__()
        self.heads, self.causal, self.form = config.n_heads, causal, config.latent_form
        self.dropout = nn.Dropout(config.attention_dropout)
        self.rotary, (_, held) = make_rotary(config), config.cached_heads
        width, norm = config.head_width, {"epsilon": config.latent_norm_epsilon, "unit_offset": config.norm_unit_offset}
        self.width = config.kv_latent or 0
        self.d_key, self.d_value = width - (held - self.width), config.value_width
        self.scale = width**-0.5 if config.attention_scale is None else config.attention_scale
        self.direct = config.query_latent is None
        if config.query_latent is None:
            self.query = nn.Linear(config.d_model, self.heads * width, bias=False)
        else:
            self.query_down = nn.Linear(config.d_model, config.query_latent, config.qkv_bias)
            self.query_norm = ScaledNorm("rms", config.query_latent, **norm)
            self.query_up = nn.Linear(config.query_latent, self.heads * width, bias=False)
        self.kv_down = nn.Linear(config.d_model, held, config.qkv_bias)
        self.kv_norm = ScaledNorm("rms", self.width, **norm)
        self.key_up = nn.Linear(self.width, self.heads * self.d_key, bias=False)
        self.value_up = nn.Linear(self.width, self.heads * self.d_value, bias=False)
        self.out = nn.Linear(self.heads * self.d_value, config.d_model, config.output_bias)

    def weights(self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, place: Place = IN_ORDER) -> Tensor:
        """Return the attention weights, for plotting."""
        q, latents, _ = self._read(x, None, place)
        read = self._expanded(q, latents, mask)
        return attention_weights(read.q, read.k, mask, bias, Scoring(self.scale), causal=self.causal)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, bias: Tensor | None = None, place: Place = IN_ORDER) -> Tensor:
        """Attend to keys that `mask` (`B N|1 T S`, True = may attend) allows; `bias` of that shape is added to the scores."""
        return self.extend(x, None, mask, bias=bias, place=place)[0]

    def extend(
        self,
        x: Tensor,
        cache: LayerCache | None,
        mask: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        place: Place = IN_ORDER,
    ) -> tuple[Tensor, LayerCache | None]:
        """Return the output for x after the cached tokens, and the cache with x added. Without a cache: x alone."""
        causal = self.causal and cache is None
        q, latents, held = self._read(x, cache, place)
        absorbed = self.form == "absorbed" or (self.form == "auto" and cache is not None and self._fewer(x.shape[1]))
        read = (self._absorbed if absorbed else self._expanded)(q, latents, mask)
        y = attention(*read, bias, self.dropout, Scoring(self.scale), causal=causal)
        return self.out(merge_heads(self._values(y) if absorbed else y)), held

    def _read(self, x: Tensor, cache: LayerCache | None, place: Place) -> tuple[Tensor, Tensor, LayerCache | None]:
        """Return queries, and the latents beside rotated keys, after the cached ones."""
        q = self.query(x) if self.direct else self.query_up(self.query_norm(self.query_down(x)))
        q, down = split_heads(q, self.heads), self.kv_down(x)
        positions, rotary = place.positions, cast(Rotary, self.rotary)
        if positions is None:
            positions = (torch.arange(x.shape[1]) + (0 if cache is None else cache.length))[None]
        turned, shared = (rotate(it, rotary, positions) for it in (q[..., self.d_key :], down[:, :, None, self.width :]))
        q = torch.cat([q[..., : self.d_key], turned], -1)
        latents = torch.cat([self.kv_norm(down[..., : self.width]), shared[:, :, 0]], -1)
        if cache is None:
            return q, latents, None
        held, _, cache = cache.append(latents[:, :, None], None)
        return q, held[:, :, 0], cache

    def _expanded(self, q: Tensor, latents: Tensor, mask: Tensor | None) -> AttentionInputs:
        """Make the keys and values of every head of the latents."""
        own = latents[..., : self.width]
        keys, shared = split_heads(self.key_up(own), self.heads), latents[:, :, None, self.width :]
        shared = shared.expand(*keys.shape[:-1], shared.shape[-1])
        return AttentionInputs(q, torch.cat([keys, shared], -1), split_heads(self.value_up(own), self.heads), mask)

    def _absorbed(self, q: Tensor, latents: Tensor, mask: Tensor | None) -> AttentionInputs:
        """Project the queries to the latents, which are the keys and the values of one head."""
        kernel = self.key_up.weight.T.reshape(self.width, self.heads, -1)
        projected = torch.einsum("btnh,rnh->btnr", q[..., : self.d_key], kernel)
        latents = latents[:, :, None]
        return AttentionInputs(torch.cat([projected, q[..., self.d_key :]], -1), latents, latents, mask)

    def _values(self, gathered: Tensor) -> Tensor:
        """Project what was gathered of the latents to the values of every head."""
        kernel = self.value_up.weight.T.reshape(self.width, self.heads, -1)
        return torch.einsum("btnr,rnh->btnh", gathered[..., : self.width], kernel)

    def _fewer(self, queries: int) -> bool:
        """True if the absorbed form takes fewer products with each cached token: 2 R a query and head, in place of R (X + V) a
        head, to make its key of X units and its value of V, and X + V a query and head; rotated units are in both."""
        made = self.d_key + self.d_value
        return queries * (2 * self.width - made) < self.width * made


def make_attention(
    config: BlockConfig, *, causal: bool = False, sharing: Sharing = "none"
) -> MultiHeadAttention | LatentAttention:
    """Build the self-attention of a block."""
    if config.kv_latent is None:
        return MultiHeadAttention(config, causal=causal, sharing=sharing)
    return LatentAttention(config, causal=causal)
