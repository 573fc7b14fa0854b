"""Bugs in the parts of a transformer: activations, norms, projections, attention, embeddings, and their gradients."""

from collections.abc import Callable
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxformer.convert.rules import Rule
from jaxformer.models import gpt
from jaxformer.nn import attention, embeddings, feedforward, masks, matmul, norms
from jaxformer.nn.tree import STACKED
from jaxformer.parity.injections import (
    Injection,
    Mutant,
    Weights,
    config,
    instead,
    patch,
    reads_as,
    rule,
    swapped,
    weights,
    without,
)


def layers_reversed(tensors: Weights) -> Weights:
    """The last block runs first."""
    return {name: leaf[::-1] if STACKED in name else leaf for name, leaf in tensors.items()}


def layer_norm_as(normalise: Callable[[Array, float], Array]) -> Injection:
    """Another formula for LayerNorm, on x and epsilon."""
    return instead(norms.FUNCTIONS, layer=normalise)


def mean(x: Array) -> Array:
    """Over the last axis, which stays."""
    return x.mean(-1, keepdims=True)


def variance(x: Array, correction: int = 0) -> Array:
    """Over the last axis, which stays."""
    return x.var(-1, keepdims=True, ddof=correction)


def fast_variance(x: Array) -> Array:
    """E[x^2] - E[x]^2: cancels where the mean is large."""
    return mean(x * x) - mean(x) * mean(x)


def scores_times(factor: Callable[[Array], float]) -> Injection:
    """Attention scores with another scale: factor(q) on top of 1 / sqrt(H)."""
    return patch(attention, attention_weights=lambda original: lambda q, k, mask: original(q * factor(q), k, mask))


def softmax_of(masked: Callable[[Array, Array], Array]) -> Injection:
    """The ordinary softmax of masked(scores, mask)."""
    return instead(attention, masked_softmax=lambda scores, mask: jax.nn.softmax(masked(scores, mask), -1))


def zeroed_afterwards(scores: Array, mask: Array) -> Array:
    """Zeros for rows without a key, and NaN gradients behind them: -inf is added, and its row is NaN before it is zero."""
    return jnp.where(mask.any(-1, keepdims=True), jax.nn.softmax(scores + jnp.where(mask, 0.0, -jnp.inf), -1), 0.0)


def over_queries(original: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """The softmax on the wrong axis."""
    return lambda scores, mask: original(scores.swapaxes(-1, -2), mask.swapaxes(-1, -2)).swapaxes(-1, -2)


def split_per_head(qkv: Array, heads: int, kv_heads: int) -> list[Array]:
    """q, k, v of the first head, then of the second, ..., as GPT-NeoX packs them."""
    parts = qkv.reshape(*qkv.shape[:-1], heads, 3, -1)
    return [parts[..., i, :].reshape(*qkv.shape[:-1], -1) for i in range(3)]


def split_width_first(x: Array, heads: int) -> Array:
    """`H N` along the last axis where it is `N H`."""
    return x.reshape(*x.shape[:-1], -1, heads).swapaxes(-1, -2)


def merge_width_first(x: Array) -> Array:
    """The inverse of split_width_first."""
    return x.swapaxes(-1, -2).reshape(*x.shape[:-2], -1)


def heads_tiled(original: Callable[..., Array]) -> Callable[..., Array]:
    """Head n reads key head n mod K where it is n // (N / K)."""

    def attend(q: Array, k: Array, v: Array, *rest: object) -> Array:
        copies = (1, 1, q.shape[2] // k.shape[2], 1)
        return original(q, jnp.tile(k, copies), jnp.tile(v, copies), *rest)

    return attend


def causal_off_by(n: int, where: ModuleType = gpt) -> Injection:
    """Query t sees the keys up to t + n."""
    return patch(where, causal_mask=lambda original: lambda queries, keys, offset: original(queries, keys, offset + n))


def positions_off_by(n: int) -> Injection:
    """Token t stands at t + n."""

    def shifted(original: Callable[..., Array]) -> Callable[..., Array]:
        return lambda self, ids, positions, **rest: original(self, ids, positions + n, **rest)

    return patch(embeddings.InputEmbedding, __call__=shifted)


def in_blocks(original: Callable[[int, int], np.ndarray]) -> Callable[[int, int], np.ndarray]:
    """All sines, then all cosines (Marian's and fairseq's order) where they alternate."""

    def table(n_positions: int, d_model: int) -> np.ndarray:
        alternating = original(n_positions, d_model)
        return np.concatenate([alternating[:, 0::2], alternating[:, 1::2]], -1)

    return table


def padding_row_frozen(original: Callable[..., Array]) -> Callable[..., Array]:
    """torch's `padding_idx=0`: that row of the table gets no gradient."""

    def encode(self: embeddings.Embedding, ids: Array) -> Array:
        x = original(self, ids)
        return jnp.where((ids == 0)[..., None], jax.lax.stop_gradient(x), x)

    return encode


ACTIVATIONS = [
    Mutant(
        "GELU by tanh for GELU by erf",
        config(activation="gelu_tanh"),
        guilty="feed_forward",
        cause="jax activation gelu by tanh",
    ),
    Mutant(
        "quick-GELU for GELU",
        instead(feedforward.ACTIVATIONS, gelu=lambda x: x * jax.nn.sigmoid(1.702 * x)),
        guilty="feed_forward",
        cause="jax activation quick gelu",
    ),
    Mutant(
        "ReLU for SiLU in the gate",
        config(activation="relu"),
        "rich",
        guilty="feed_forward",
        cause="torch activation silu; jax activation relu",
    ),
    Mutant("gate and up swapped", swapped("gate", "up"), "rich", guilty="gate|up", cause="jax weight of (up|gate)"),
]

NORMS = [
    Mutant(
        "LayerNorm epsilon 1e-6 for 1e-5",
        config(norm_epsilon=1e-6),
        guilty="attention_norm|feed_forward_norm|norm",
        cause="torch epsilon 1e-05; jax epsilon 1e-06",
    ),
    Mutant(
        "LayerNorm epsilon 1e-12 for 1e-5",
        config(norm_epsilon=1e-12),
        guilty="attention_norm|feed_forward_norm|norm",
        cause="torch epsilon 1e-05; jax epsilon 1e-12",
    ),
    Mutant(
        "RMSNorm epsilon 1e-6 for 1e-5",
        config(norm_epsilon=1e-6),
        "rich",
        guilty="attention_norm|feed_forward_norm|norm",
        cause="torch epsilon 1e-05; jax epsilon 1e-06",
    ),
    Mutant(
        "epsilon outside the root",
        layer_norm_as(lambda x, e: (x - mean(x)) / (jnp.sqrt(variance(x)) + e)),
        guilty="attention_norm|feed_forward_norm|norm",
        cause="jax epsilon's place outside the root",
    ),
    Mutant(
        "epsilon inside the root",
        instead(norms.FUNCTIONS, std=lambda x, e: (x - mean(x)) / jnp.sqrt(variance(x, 1) + e)),
        "fused",
        guilty="attention_norm|feed_forward_norm|norm",
        cause="jax epsilon's place in the root",
    ),
    Mutant(
        "unbiased deviation for biased",
        layer_norm_as(lambda x, e: (x - mean(x)) / jnp.sqrt(variance(x, 1) + e)),
        guilty="attention_norm|feed_forward_norm|norm",
        cause="torch variance biased; jax variance unbiased",
    ),
    Mutant(
        "biased deviation for unbiased",
        instead(norms.FUNCTIONS, std=lambda x, e: (x - mean(x)) / (jnp.sqrt(variance(x)) + e)),
        "fused",
        guilty="attention_norm|feed_forward_norm|norm",
        cause="torch variance unbiased; jax variance biased",
    ),
    Mutant(
        "fast variance",
        layer_norm_as(lambda x, e: (x - mean(x)) / jnp.sqrt(fast_variance(x) + e)),
        "shifted",
        guilty="attention_norm|feed_forward_norm|norm",
    ),
    Mutant("LayerNorm bias dropped", reads_as(0.0, "attention_norm.bias"), guilty="attention_norm", cause="jax bias left out"),
    Mutant(
        "LayerNorm gain dropped",
        reads_as(1.0, "feed_forward_norm.scale"),
        guilty="feed_forward_norm",
        cause="jax gain left out",
    ),
    Mutant("final LayerNorm gain dropped", reads_as(1.0, "norm.scale"), guilty="norm", cause="jax gain left out"),
    Mutant("norm after the residual sum for before it", config(norm_position="post")),
]

PROJECTIONS = [
    Mutant("query bias dropped", reads_as(0.0, "query.bias"), guilty="query", cause="jax bias left out"),
    Mutant("value bias dropped", reads_as(0.0, "value.bias"), guilty="value", cause="jax bias left out"),
    Mutant(
        "fused query, key and value bias dropped", reads_as(0.0, "qkv.bias"), "fused", guilty="qkv", cause="jax bias left out"
    ),
    Mutant("key bias dropped", without("stack.blocks.attention.key.bias")),
    Mutant("output bias dropped", reads_as(0.0, "out.bias"), guilty="out", cause="jax bias left out"),
    Mutant("bias of the logits dropped", reads_as(0.0, "head.bias"), guilty="head", cause="jax bias left out"),
    Mutant("feed-forward bias dropped", reads_as(0.0, "down.bias"), guilty="down", cause="jax bias left out"),
    Mutant("query and key swapped", swapped("query", "key"), guilty="query|key", cause="jax weight of (key|query)"),
    Mutant(
        "square weight not transposed",
        rule(Rule("out.kernel", "out.weight")),
        guilty="out",
        cause="torch weight transposed; jax weight as it is",
    ),
    Mutant(
        "fused query, key and value split per head",
        instead(attention, split_qkv=split_per_head),
        "fused",
        guilty="attention",
        cause="jax .*heads, each with its own three",
    ),
    Mutant(
        "heads (H, N) for (N, H)",
        instead(attention, split_heads=split_width_first, merge_heads=merge_width_first),
        guilty="attention",
        cause="torch heads laid out head by head; jax heads laid out interleaved",
    ),
    Mutant(
        "key heads tiled for repeated",
        patch(attention, attention=heads_tiled),
        "rich",
        guilty="attention",
        cause="torch key heads repeated; jax key heads tiled",
    ),
    Mutant("layers in reverse", weights(layers_reversed)),
]

ATTENTION = [
    Mutant(
        "scale 1/sqrt(D)", scores_times(lambda q: q.shape[2] ** -0.5), guilty="attention", cause=r"jax scale 1/sqrt\(d_model\)"
    ),
    Mutant("no scale", scores_times(lambda q: q.shape[3] ** 0.5), guilty="attention", cause="jax scale 1 "),
    Mutant(
        "-1e9 for -inf",
        softmax_of(lambda scores, mask: jnp.where(mask, scores, -1e9)),
        guilty="attention",
        cause="jax masked scores large and negative",
    ),
    Mutant(
        "-1e4 for -inf",
        softmax_of(lambda scores, mask: jnp.where(mask, scores, -1e4)),
        guilty="attention",
        cause="jax masked scores large and negative",
    ),
    Mutant(
        "-1e4 added",
        softmax_of(lambda scores, mask: scores + jnp.where(mask, 0.0, -1e4)),
        guilty="attention",
        cause="jax masked scores -1e4 added",
    ),
    Mutant(
        "NaN for a row without keys",
        softmax_of(lambda scores, mask: jnp.where(mask, scores, -jnp.inf)),
        guilty="attention",
        cause="jax masked scores -inf, rows without keys NaN",
    ),
    Mutant(
        "NaN gradient behind a row without keys",
        instead(attention, masked_softmax=zeroed_afterwards),
        guilty="attention",
        cause="NaN",
    ),
    Mutant(
        "softmax over the queries",
        patch(attention, masked_softmax=over_queries),
        guilty="attention",
        cause="torch softmax over keys; jax softmax over queries",
    ),
    Mutant(
        "softmax in bfloat16",
        patch(attention, masked_softmax=lambda f: lambda s, mask: f(s.astype(jnp.bfloat16), mask).astype(s.dtype)),
        guilty="attention",
    ),
    Mutant(
        "padding mask inverted",
        patch(masks, padding_mask=lambda original: lambda valid: original(~valid)),
        guilty="attention",
        cause="jax mask .*inverted",
    ),
    Mutant(
        "padding mask ignored",
        patch(masks, padding_mask=lambda original: lambda valid: original(jnp.ones_like(valid))),
        guilty="attention",
        cause="torch mask as given; jax mask causal ",
    ),
    Mutant("causal mask one too wide", causal_off_by(1), guilty="attention", cause="jax mask .*causal and one more"),
    Mutant("causal mask one too narrow", causal_off_by(-1), guilty="attention", cause="jax mask .*causal and one fewer"),
]

EMBEDDINGS = [
    Mutant("learned positions off by one", positions_off_by(1), guilty="embed", cause=r"ids \+1"),
    Mutant("learned positions off by two", positions_off_by(2), guilty="embed", cause=r"ids \+2"),
    Mutant(
        "sinusoid positions off by one",
        positions_off_by(1),
        "rich",
        guilty="embed",
        cause="torch first position 0; jax first position 1",
    ),
    Mutant(
        "sinusoid positions off by two",
        positions_off_by(2),
        "rich",
        guilty="embed",
        cause="torch first position 0; jax first position 2",
    ),
    Mutant(
        "sinusoid in blocks",
        patch(embeddings.TABLES, sinusoid=in_blocks),
        "rich",
        guilty="embed",
        cause="jax positions sinusoid in blocks",
    ),
    Mutant(
        "embedding scale missing",
        config(embedding_scale=False),
        "rich",
        guilty="embed",
        cause=r"torch embedding scale sqrt\(d_model\); jax embedding scale 1 ",
    ),
]

GRADIENTS = [
    Mutant(
        "no gradient for the padding id's row",
        patch(embeddings.Embedding, encode=padding_row_frozen),
        guilty=r"embed\.(token|position)",
        cause="row 0",
    ),
    Mutant(
        "weight gradient halved",
        patch(matmul, _weight_tangent=lambda f: lambda x, dw: 0.5 * f(x, dw)),
        guilty="query|key|value|out|up|down|head",
        cause="0.5 times",
    ),
]

PARTS = (*ACTIVATIONS, *NORMS, *PROJECTIONS, *ATTENTION, *EMBEDDINGS, *GRADIENTS)
