"""Bugs in attention: its projections, its heads, its scores and its masks."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from jaxformer.convert.rules import Rule
from jaxformer.evaluation.inject import Injection, Mutant, Weights, instead, patch, reads_as, rule, swapped, weights, without
from jaxformer.evaluation.outcome import choice
from jaxformer.nn import attention, masks
from jaxformer.pytree import STACKED

MASKED = "masked scores=-inf, rows without keys 0"
NO_BIAS = choice("linear layer", "bias=added, left out")
ONE_MORE = choice("attention", "mask=as given, causal, as given, causal and one more")


def weight_of(*others: str) -> str:
    """Return the pattern of a linear layer that has the weight of one of these layers."""
    return " | ".join(choice("linear layer", f"weight=as it is, of {other}") for other in others)


def layers_reversed(tensors: Weights) -> Weights:
    """Run the last block first."""
    return {name: leaf[::-1] if STACKED in name else leaf for name, leaf in tensors.items()}


def scores_times(factor: Callable[[Array], float]) -> Injection:
    """Scale attention scores by factor(q), in addition to 1 / sqrt(H)."""
    return patch(attention, attention_weights=lambda original: lambda q, *rest, **how: original(q * factor(q), *rest, **how))


def softmax_of(masked: Callable[[Array, Array], Array]) -> Injection:
    """Replace the masked softmax by the ordinary softmax of masked(scores, mask)."""
    return instead(attention, masked_softmax=lambda scores, mask: jax.nn.softmax(masked(scores, mask), -1))


def zeroed_afterwards(scores: Array, mask: Array) -> Array:
    """Add -inf and set rows without keys to zero after the softmax: values are right, but gradients are NaN."""
    return jnp.where(mask.any(-1, keepdims=True), jax.nn.softmax(scores + jnp.where(mask, 0.0, -jnp.inf), -1), 0.0)


def over_queries(original: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Take the softmax over the queries, the wrong axis."""
    return lambda scores, mask: original(scores.swapaxes(-1, -2), mask.swapaxes(-1, -2)).swapaxes(-1, -2)


def split_per_head(qkv: Array, heads: int, kv_heads: int) -> list[Array]:
    """Split into q, k, v of the first head, then of the second, ..., as GPT-NeoX packs them."""
    parts = qkv.reshape(*qkv.shape[:-1], heads, 3, -1)
    return [parts[..., i, :].reshape(*qkv.shape[:-1], -1) for i in range(3)]


def split_width_first(x: Array, heads: int) -> Array:
    """Split the last axis into `H N` in place of `N H`."""
    return x.reshape(*x.shape[:-1], -1, heads).swapaxes(-1, -2)


def merge_width_first(x: Array) -> Array:
    """Invert split_width_first."""
    return x.swapaxes(-1, -2).reshape(*x.shape[:-2], -1)


def heads_tiled(original: Callable[..., Array]) -> Callable[..., Array]:
    """Let head n read key head n mod K in place of n // (N / K)."""

    def attend(q: Array, k: Array, v: Array, *rest: object, **how: object) -> Array:
        copies = (1, 1, q.shape[2] // k.shape[2], 1)
        return original(q, jnp.tile(k, copies), jnp.tile(v, copies), *rest, **how)

    return attend


def causal_off_by(n: int) -> Injection:
    """Let query t see the keys up to t + n."""
    return patch(attention, causal_mask=lambda original: lambda queries, keys, offset: original(queries, keys, offset + n))


PROJECTIONS = [
    Mutant("query bias dropped", reads_as(0.0, "query.bias"), diverging="query", cause=NO_BIAS),
    Mutant("value bias dropped", reads_as(0.0, "value.bias"), diverging="value", cause=NO_BIAS),
    Mutant(
        "fused query, key and value bias dropped",
        reads_as(0.0, "qkv.bias"),
        "fused",
        diverging="qkv",
        cause=NO_BIAS,
    ),
    Mutant("key bias dropped", without("stack.blocks.attention.key.bias")),
    Mutant("output bias dropped", reads_as(0.0, "out.bias"), diverging="out", cause=NO_BIAS),
    Mutant("bias of the logits dropped", reads_as(0.0, "head.bias"), diverging="head", cause=NO_BIAS),
    Mutant("feed-forward bias dropped", reads_as(0.0, "down.bias"), diverging="down", cause=NO_BIAS),
    Mutant("query and key swapped", swapped("query", "key"), diverging="query|key", cause=weight_of("key", "query")),
    Mutant(
        "square weight not transposed",
        rule(Rule("out.kernel", "out.weight")),
        diverging="out",
        cause=choice("linear layer", "weight=as it is, transposed"),
    ),
    Mutant(
        "fused query, key and value split per head",
        instead(attention, split_qkv=split_per_head),
        "fused",
        diverging="attention",
        cause=choice("attention", "(query, key, value)=in blocks, 4 heads, each with its own three"),
    ),
    Mutant(
        "heads (H, N) for (N, H)",
        instead(attention, split_heads=split_width_first, merge_heads=merge_width_first),
        diverging="attention",
        cause=choice("attention", "heads laid out=head by head, interleaved"),
    ),
    Mutant(
        "key heads tiled for repeated",
        patch(attention, attention=heads_tiled),
        "rich",
        diverging="attention",
        cause=choice("attention", "key heads=repeated, tiled"),
    ),
    Mutant("layers in reverse", weights(layers_reversed)),
]

ATTENTION = [
    Mutant(
        "scale 1/sqrt(D)",
        scores_times(lambda q: q.shape[2] ** -0.5),
        diverging="attention",
        cause=choice("attention", "scale=1/sqrt(head width), 1/sqrt(d_model)"),
    ),
    Mutant(
        "no scale",
        scores_times(lambda q: q.shape[3] ** 0.5),
        diverging="attention",
        cause=choice("attention", "scale=1/sqrt(head width), 1"),
    ),
    Mutant(
        "-1e9 for -inf",
        softmax_of(lambda scores, mask: jnp.where(mask, scores, -1e9)),
        diverging="attention",
        cause=choice("attention", f"{MASKED}, large and negative"),
    ),
    Mutant(
        "-1e4 for -inf",
        softmax_of(lambda scores, mask: jnp.where(mask, scores, -1e4)),
        diverging="attention",
        cause=choice("attention", f"{MASKED}, large and negative"),
    ),
    Mutant(
        "-1e4 added",
        softmax_of(lambda scores, mask: scores + jnp.where(mask, 0.0, -1e4)),
        diverging="attention",
        cause=choice("attention", f"{MASKED}, -1e4 added"),
    ),
    Mutant(
        "NaN for a row without keys",
        softmax_of(lambda scores, mask: jnp.where(mask, scores, -jnp.inf)),
        diverging="attention",
        cause=choice("attention", f"{MASKED}, -inf, rows without keys NaN"),
    ),
    Mutant(
        "NaN gradient of a row without keys",
        instead(attention, masked_softmax=zeroed_afterwards),
        diverging="attention",
        cause="gradient.not_finite wrong=* size=*",
    ),
    Mutant(
        "softmax over the queries",
        patch(attention, masked_softmax=over_queries),
        diverging="attention",
        cause=choice("attention", "softmax over=keys, queries"),
    ),
    Mutant(
        "softmax in bfloat16",
        patch(attention, masked_softmax=lambda f: lambda s, mask: f(s.astype(jnp.bfloat16), mask).astype(s.dtype)),
        diverging="attention",
    ),
    Mutant(
        "padding mask inverted",
        patch(masks, padding_mask=lambda original: lambda valid: original(~valid)),
        diverging="attention",
        cause=choice("attention", "mask=as given, causal, inverted, causal"),
    ),
    Mutant(
        "padding mask ignored",
        patch(masks, padding_mask=lambda original: lambda valid: original(jnp.ones_like(valid))),
        diverging="attention",
        cause=choice("attention", "mask=as given, causal, causal"),
    ),
    Mutant("causal mask one too wide", causal_off_by(1), diverging="attention", cause=ONE_MORE),
    Mutant(
        "causal mask one too narrow",
        causal_off_by(-1),
        diverging="attention",
        cause=choice("attention", "mask=as given, causal, as given, causal and one fewer"),
    ),
]


MUTANTS = (*PROJECTIONS, *ATTENTION)
