"""Scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jaxformer.config.blocks import BlockConfig
from jaxformer.config.layer_kinds import Sharing
from jaxformer.errors import ConfigError
from jaxformer.nn.cache import KeysValues, LayerCache, fold_heads, merge_heads, split_heads, split_qkv, unfold_heads
from jaxformer.nn.chunked_attention import Inputs, chunked
from jaxformer.nn.disentangled import distance_rows, distance_scores
from jaxformer.nn.dropout import dropout
from jaxformer.nn.feedforward import clamp
from jaxformer.nn.fused_attention import fused
from jaxformer.nn.linear import Linear
from jaxformer.nn.masks import causal_mask, combine, window_mask
from jaxformer.nn.norms import PlainNorm, ScaledNorm, head_norm
from jaxformer.nn.place import IN_ORDER, Place, read_of
from jaxformer.nn.precision import wide_dtype
from jaxformer.nn.rotary import make_rotary, rotate
from jaxformer.nn.softmax import Sinks, masked_softmax
from jaxformer.validation.inputs import check_place, check_scored, check_sources, source_widths


class Scoring(NamedTuple):
    """Options of the attention scores."""

    scale: float | None = None
    """Factor of the products of queries and keys; None: H^-0.5."""
    softcap: float | None = None
    """Soft cap: scores s become softcap * tanh(s / softcap), before bias and mask."""
    sinks: Sinks | None = None


USUAL_SCORING = Scoring()
"""Default scoring: the scale H^-0.5, no soft cap, no sinks."""


def attention_weights(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    mask: Bool[Array, "_ _ _ _"] | None = None,
    bias: Float[Array, "_ _ _ _"] | None = None,
    scoring: Scoring = USUAL_SCORING,
    *,
    causal: bool = False,
) -> Float[Array, "B N T S"]:
    """softmax(q k^T / sqrt(H) + bias) in float32 or wider; each group of N / K consecutive heads shares a key head.

    A key with a bias of -inf is masked, and with `causal` every later key: the queries are the last T of the S tokens.
    """
    batch, queries, heads, width = q.shape
    kv_heads, keys = k.shape[2], k.shape[1]
    check_scored((batch, heads, queries, keys), mask, bias)
    if causal:
        mask = combine(causal_mask(queries, keys, keys - queries), mask)
    q, wide = q * (width**-0.5 if scoring.scale is None else scoring.scale), wide_dtype(q.dtype)
    if queries == 1:  # decoding: the cache is read in its own layout; elsewhere folding costs a small model a third of a step
        grouped = fold_heads(q).reshape(batch * kv_heads, -1, width)
        scores = jnp.einsum("xrh,xsh->xrs", grouped, fold_heads(k), preferred_element_type=wide)
    else:
        grouped = q.reshape(batch, queries, kv_heads, heads // kv_heads, width)
        scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=wide)
    scores = scores.reshape(batch, heads, queries, keys)
    if scoring.softcap is not None:
        scores = scoring.softcap * jnp.tanh(scores / scoring.softcap)
    scores = scores if bias is None else scores + bias.astype(scores.dtype)
    return masked_softmax(scores, mask) if scoring.sinks is None else scoring.sinks(scores, mask)


def weighted_values(weights: Float[Array, "B N T S"], v: Float[Array, "B S K H"]) -> Float[Array, "B T N H"]:
    """Average the values by the attention weights."""
    batch, heads, queries, keys = weights.shape
    if queries != 1:
        grouped = weights.astype(v.dtype).reshape(batch, v.shape[2], -1, queries, keys)
        return jnp.einsum("bkgts,bskh->btkgh", grouped, v).reshape(batch, queries, heads, -1)
    grouped = weights.astype(v.dtype).reshape(batch * v.shape[2], -1, keys)
    gathered = jnp.einsum("xrs,xsh->xrh", grouped, fold_heads(v))
    return unfold_heads(gathered.reshape(batch * heads, queries, -1), heads)


def attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B S K H"],
    v: Float[Array, "B S K _"],
    mask: Bool[Array, "_ _ _ _"] | None = None,
    bias: Float[Array, "_ _ _ _"] | None = None,
    dropout_rate: float = 0.0,
    rng: PRNGKeyArray | None = None,
    scoring: Scoring = USUAL_SCORING,
    *,
    causal: bool = False,
) -> Float[Array, "B T N _"]:
    """Attend to the values: their average by the attention weights, which are dropped out if an rng is given.

    With `causal`, later keys are hidden too; where that saves time, no score is computed for them.
    """
    rng = rng if dropout_rate else None
    plain = all(it is None for it in (mask, bias, rng, scoring.softcap, scoring.sinks))

    def attend(given: Inputs):
        scored = given.mask, given.bias, scoring._replace(sinks=given.sinks)
        weights = attention_weights(given.q, given.k, *scored, causal=causal)
        return weighted_values(dropout(weights, dropout_rate, given.rng), given.v)

    given = Inputs(q, k, v, mask, bias, scoring.sinks, rng)
    ways = {
        "cpu": chunked(attend, given, causal=causal, plain=plain, scale=scoring.scale),
        "cuda": fused(given, scoring.scale, causal=causal) if plain else None,
    }
    ways = {platform: way for platform, way in ways.items() if way is not None}
    return jax.lax.platform_dependent(given, **ways, default=attend) if ways else attend(given)


Source = Float[Array, "B S _"] | tuple[Float[Array, "B S _"], Float[Array, "B S _"]]
"""States from which keys and values are projected: one array for both, or a pair, for keys and for values."""
Memory = Source | KeysValues
"""Source of keys and values, or the keys and values already computed from a source."""


class AttentionInputs(NamedTuple):
    """Queries, keys and values of all heads, and the mask."""

    q: Float[Array, "B T N H"]
    k: Float[Array, "B S K H"]
    v: Float[Array, "B S K _"]
    mask: Bool[Array, "_ _ _ _"] | None


class MultiHeadAttention(nnx.Module):
    """Multi-head attention: project to heads, attend, project back. Keys and values come from x itself, or from a memory.

    `kdim` and `vdim` are the widths of the sources of keys and values, as in torch.nn.MultiheadAttention. None: d_model.
    With `causal`, later tokens are hidden, but for those of a cache, whose mask hides them.
    With `sharing="takes"`, keys and values are those of an earlier layer, `place.read`.
    """

    def __init__(
        self,
        config: BlockConfig,
        *,
        cross: bool = False,
        causal: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        sharing: Sharing = "none",
    ):
        self.heads, self.kv_heads, self.causal = config.n_heads, config.kv_heads, causal
        self.sharing, own = sharing, sharing != "takes"
        self.dropout_rate = config.attention_dropout
        d_model, d_q, d_kv = config.d_model, config.n_heads * config.head_width, config.kv_heads * config.head_width
        self.kdim, self.vdim = source_widths(d_model, cross, kdim, vdim)
        self.fused = config.projections == "fused" and not cross
        if self.fused:
            self.qkv = Linear(d_model, d_q + 2 * d_kv, config.qkv_bias)
        else:
            self.query = Linear(d_model, d_q, config.qkv_bias)
        if own and not self.fused:
            self.key = Linear(self.kdim, d_kv, config.qkv_bias and config.key_bias)
            self.value = Linear(self.vdim, d_kv, config.qkv_bias) if config.value_projection else None
        self.out = Linear(d_q, d_model, config.output_bias) if config.output_projection else None
        normed = self.heads, self.kv_heads if own else 0
        self.query_norm, self.key_norm = (head_norm(config, n) if config.qk_norm and n else None for n in normed)
        self.value_norm = PlainNorm("rms", config.norm_epsilon) if config.value_norm else None
        self.sinks = Sinks(config.n_heads) if config.sinks else None
        self.scale, self.softcap, self.norm_over = config.attention_scale, config.attention_softcap, config.qk_norm_over
        self.clip, self.norm_late = config.clip_qkv, config.qk_norm_after_rotary and not cross
        self.rotary = None if cross else make_rotary(config)
        self.buckets, self.farthest = config.relative_buckets, config.relative_distance
        self.window, self.patterned = None if cross else config.window, config.layer_pattern is not None and not cross
        self.rotary_patterned = config.rotary_pattern is not None and not cross

    def project(
        self, x: Float[Array, "B T D"], memory: Memory | None
    ) -> tuple[Float[Array, "B T N H"], Float[Array, "B S K H"], Float[Array, "B S K H"]]:
        """Return the queries of x, and the keys and values of the memory or, without a memory, of x."""
        if self.fused:
            if memory is not None:
                raise ConfigError("projections = 'fused' attends to x alone; build with cross=True to attend to a memory")
            q, k, v = split_qkv(self.qkv(x), self.heads, self.kv_heads)
            q, k, v = split_heads(q, self.heads), split_heads(k, self.kv_heads), split_heads(v, self.kv_heads)
            return self._normed(self.query_norm, q), self._normed(self.key_norm, k), self._normed_values(v)
        read = memory if isinstance(memory, KeysValues) else self.keys_values(x if memory is None else memory)
        return self.queries(x), *read.unfolded()

    def queries(self, x: Float[Array, "B T D"]) -> Float[Array, "B T N H"]:
        """Project x to queries."""
        return self._normed(self.query_norm, split_heads(self.query(x), self.heads))

    def keys_values(self, source: Source) -> KeysValues:
        """Project the source to keys and values."""
        keys, values = source if isinstance(source, tuple) else (source, source)
        check_sources(keys, values, (self.kdim, self.vdim))
        keys = split_heads(self.key(keys), self.kv_heads)
        values = keys if self.value is None else split_heads(self.value(values), self.kv_heads)
        keys, values = self._normed(self.key_norm, keys), self._normed_values(values)
        return KeysValues(fold_heads(keys), fold_heads(values), self.kv_heads)

    def weights(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        place: Place = IN_ORDER,
    ) -> Float[Array, "B N T S"]:
        """Return the attention weights, for plotting."""
        read, bias, _ = self._attended(x, None, memory, mask, bias, place)
        causal = self.causal and memory is None
        return attention_weights(read.q, read.k, read.mask, bias, self._scoring(), causal=causal)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        memory: Memory | None = None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        rng: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        place: Place = IN_ORDER,
    ) -> Float[Array, "B T D"]:
        """Attend to keys that `mask` (`B N|1 T S`, True = may attend) allows; `bias` of that shape is added to the scores."""
        return self.extend(x, None, memory, mask, rng, bias=bias, place=place)[0]

    def extend(
        self,
        x: Float[Array, "B T D"],
        cache: LayerCache | None,
        memory: Memory | None = None,
        mask: Bool[Array, "_ _ _ _"] | None = None,
        rng: PRNGKeyArray | None = None,
        *,
        bias: Float[Array, "_ _ _ _"] | None = None,
        place: Place = IN_ORDER,
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        """Return the output for x after the cached tokens, and the cache with x added. Without a cache: x alone."""
        causal = self.causal and cache is None and memory is None
        read, bias, cache = self._attended(x, cache, memory, mask, bias, place)
        y = merge_heads(attention(*read, bias, self.dropout_rate, rng, self._scoring(), causal=causal))
        return (y if self.out is None else self.out(y)), cache

    def _attended(
        self,
        x: Array,
        cache: LayerCache | None,
        memory: Memory | None,
        mask: Array | None,
        bias: Array | None,
        place: Place,
    ) -> tuple[AttentionInputs, Array | None, LayerCache | None]:
        """Return rotated queries and keys, preceded by the cached ones, the mask with the sliding window in it, and the bias
        with the scores of distances."""
        check_place((self.patterned, self.rotary_patterned), place, self.rotary is not None or self.window is not None, memory)
        own = self.sharing != "takes"
        q, k, v = self.project(x, memory) if own else (self.queries(x), *read_of(place).unfolded())
        start = 0 if cache is None else cache.length
        windowed = self.window is not None if place.windowed is None else place.windowed
        if self.rotary is not None:
            behind = (jnp.arange(x.shape[1], dtype=jnp.int32) + start)[None]
            positions = behind if place.positions is None else place.positions
            q, *turned = (rotate(it, self.rotary, positions, windowed, place.rotated) for it in ((q, k) if own else (q,)))
            q, k = self._normed(self.query_norm, q, late=True), self._normed(self.key_norm, turned[0], late=True) if own else k
        if own:
            k, v, cache = self._held(k, v, cache)
        if self.window is not None:
            near = window_mask(q.shape[1], k.shape[1], self.window, start)
            mask = combine(mask, near | jnp.logical_not(windowed) if self.patterned else near)
        if place.distances is not None:
            rows = distance_rows(q.shape[1], k.shape[1], start, self.buckets, self.farthest)
            scale = q.shape[-1] ** -0.5 if self.scale is None else self.scale
            scores = distance_scores(q, k, self.project(place.distances, None)[:2], rows, scale)
            bias = scores if bias is None else scores + bias
        return AttentionInputs(q, k, v, mask), bias, cache if own else None

    def _held(self, k: Array, v: Array, cache: LayerCache | None) -> tuple[Array, Array, LayerCache | None]:
        """Return keys and values after the cached ones, and the cache with these in it; of a layer that gives, always one."""
        if cache is not None:
            return cache.append(k, v)
        if self.sharing != "gives":
            return k, v, None
        return k, v, LayerCache(KeysValues(fold_heads(k), fold_heads(v), self.kv_heads), jnp.int32(k.shape[1]))

    def _scoring(self) -> Scoring:
        return Scoring(self.scale, self.softcap, self.sinks)

    def _normed(self, norm: ScaledNorm | PlainNorm | None, x: Array, *, late: bool = False) -> Array:
        """Return queries, keys or values clamped, and with their norm where it stands: before or, `late`, after rotation."""
        if norm is not None and late == self.norm_late:
            x = norm(x) if self.norm_over != "all" else split_heads(norm(merge_heads(x)), x.shape[2])
        return x if self.clip is None or late else clamp(x, self.clip)

    def _normed_values(self, v: Array) -> Array:
        """Return values with their norm, if they have one, and clamped."""
        return self._normed(None, v if self.value_norm is None else self.value_norm(v))
