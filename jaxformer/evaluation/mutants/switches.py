"""Mutants of the options of modern models: rotary positions, sliding windows, relative biases, soft caps, places of norms."""

from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxformer.evaluation.inject import Injection, Mutant, Weights, config, instead, patch, reads_as, weights
from jaxformer.evaluation.mutants.attention import NO_BIAS
from jaxformer.evaluation.outcome import choice
from jaxformer.nn import attention, blocks, disentangled, masks, positions, rotary

HEADS = attention.MultiHeadAttention
NORMS = "attention_norm|attention_output_norm|feed_forward_norm|feed_forward_output_norm|norm"
UNSCALED: dict[str, Any] = {
    "rotary_scaling": "none",
    "rotary_factor": None,
    "rotary_original_context": None,
    "rotary_low_frequency_factor": None,
    "rotary_high_frequency_factor": None,
}


def turned_back(original: Callable[..., tuple[Array, Array]]) -> Callable[..., tuple[Array, Array]]:
    """Rotate in the opposite direction."""

    def waves(*args: Any) -> tuple[Array, Array]:
        cos, sin = original(*args)
        return cos, -sin

    return waves


def cap_last(q: Array, k: Array, mask: Array | None, bias: None, scoring: attention.Scoring, *, causal: bool) -> Array:
    """Apply the soft cap after the mask, so that masked keys count as scores of -softcap."""
    scale, cap = cast(float, scoring.scale), cast(float, scoring.softcap)
    mask = cast(Array, masks.combine(mask, masks.causal_mask(q.shape[1])))
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) * scale
    return attention.masked_softmax(cap * jnp.tanh(jnp.where(mask, scores, -jnp.inf) / cap), None)


def unnormed(original: Callable[..., Array]) -> Callable[..., Array]:
    """Skip the norms of queries and keys."""
    return lambda self, norm, x, **place: x


def no_output_norm(original: Callable[..., Array]) -> Callable[..., Array]:
    """Skip the norm of a sub-layer's output before the residual connection."""
    return lambda self, norm, output_norm, x, y, key: original(self, norm, None, x, y, key)


def output_norm_behind_the_sum(original: Callable[..., Array]) -> Callable[..., Array]:
    """Apply the norm of a sub-layer's output after the residual connection."""
    return lambda self, norm, output_norm, x, y, key: output_norm(original(self, norm, None, x, y, key))


def without_sinks(original: Callable[..., Array]) -> Callable[..., Array]:
    """Take the softmax over the keys alone, without sinks."""
    return lambda self, scores, mask: attention.masked_softmax(scores, mask)


def past_alone(original: Callable[..., Array]) -> Callable[..., Array]:
    """Let the sliding window reach back only, never ahead."""
    return lambda queries, keys, window, start: (
        original(queries, keys, window, start) & jnp.tri(queries, keys, dtype=bool)[None, None]
    )


def buckets(change: Callable[..., np.ndarray]) -> Injection:
    """Change T5's buckets to change(original, distance, both_sides)."""

    def mutated(original: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
        return lambda distance, n, farthest, *, both_sides: change(
            lambda distance, both: original(distance, n, farthest, both_sides=both), distance, both_sides
        )

    return patch(positions, bucket=mutated)


def of_one_side(original: Callable[..., Array]) -> Callable[..., Array]:
    """Leave out the products of keys with the queries of their distances."""
    return lambda q, k, distances, rows, scale: original(q, k * 0, distances, rows, scale)


def first_table(tensors: Weights) -> Weights:
    """Return the tensors with the first layer's table of distances for every layer of a stack."""
    tables = {name: leaf for name, leaf in tensors.items() if name.endswith("blocks.relative_bias.table")}
    return tensors | {name: jnp.broadcast_to(leaf[:1], leaf.shape) for name, leaf in tables.items()}


def evenly_spread(heads: int) -> np.ndarray:
    """Return slopes 2^(-8i / n) for any number of heads."""
    return 2.0 ** (-8 * np.arange(1, heads + 1) / heads)


ROTARY = [
    Mutant(name, injection, case, "attention", choice("attention*", *settings))
    for name, injection, case, *settings in (
        ("rotary base 10000 for 500000", config(rotary_base=1e4), "llama", "rotary base=500000, 10000"),
        (
            "scaling of rotary positions ignored",
            config(**UNSCALED),
            "llama",
            "rotary scaling=llama3 by 8, none",
        ),
        (
            "scaled by 32 for 8",
            config(rotary_factor=32.0),
            "llama",
            "rotary scaling=llama3 by 8, llama3 by 32",
        ),
        ("pairs interleaved", config(rotary="interleaved"), "llama", "rotary pairs=half and half, interleaved"),
        ("pairs half and half", config(rotary="half"), "neox", "rotary pairs=interleaved, half and half"),
        ("the whole head rotated", config(rotary_dim=None), "neox", "rotated part=1/2 of a head, all of a head"),
        ("rotated backwards", patch(rotary, waves=turned_back), "neox", "rotated=forwards, backwards"),
        ("YaRN's amplitude missing", config(rotary_attention_factor=1.0), "neox", "rotary amplitude=by *, 1"),
        (
            "YaRN's ramp between pairs",
            config(rotary_truncate=False),
            "neox",
            "rotary scaling=yarn by 4 of 4096, yarn by 4 of 4096, between pairs",
        ),
        (
            "norms of heads missing",
            patch(HEADS, _normed=unnormed),
            "llama",
            "queries and keys=normed, as projected",
        ),
        ("soft cap on scores missing", config(attention_softcap=None), "gemma", "soft cap=5, none"),
        ("scale 1/sqrt(H)", config(attention_scale=None), "gemma", "scale=1/sqrt(256), 1/sqrt(head width)"),
        ("cap after the mask", instead(attention, attention_weights=cap_last), "gemma", "soft cap=5, 5 after the mask"),
    )
]

WINDOWS = [
    Mutant(name, injection, "gemma", r"blocks\.[02]\.attention", choice("attention*", *settings))
    for name, injection, *settings in (
        (
            "the base of windowed layers ignored",
            config(rotary_window_base=None),
            "rotary base=10000, 1e+06",
            "rotary scaling=none, linear by 8",
        ),
        ("window one too wide", config(window=8), "window=7, 8"),
        ("window one too narrow", config(window=6), "window=7, 6"),
    )
] + [
    Mutant("layers of the pattern swapped", config(layer_pattern=("full", "window")), "gemma", "attention"),
    Mutant(
        "a window on one side",
        patch(attention, window_mask=past_alone),
        "t5",
        r"encoder\.blocks\.\d\.attention",
        "masks.made how=causal",
    ),
]

LOGITS = [
    Mutant(
        "soft cap on logits missing",
        config(logits_softcap=None),
        "gemma",
        "head",
        "parameters.number was=3 value=inf at=softcap",
    ),
    Mutant(
        "sinks ignored",
        patch(attention.Sinks, __call__=without_sinks),
        "slopes",
        "sinks",
        "arguments.other was=True other=False at=value name=value 'at=*mask.expand*'",
    ),
]

BIASES = [
    Mutant("buckets of queries and keys swapped", buckets(lambda f, away, both: f(-away, both)), "t5", "attention"),
    Mutant(
        "an encoder's buckets for the past alone",
        buckets(lambda f, away, both: f(away, False)),
        "t5",
        r"encoder\.relative_bias",
        "parameters.choice was=False other=True at=*causal",
    ),
    Mutant(
        "a decoder's buckets for both sides",
        buckets(lambda f, away, both: f(away, True)),
        "t5",
        r"decoder\.relative_bias",
        "parameters.choice was=True other=False at=*causal",
    ),
    Mutant(
        "farthest distance 128 for 40",
        config(relative_distance=128),
        "t5",
        "relative_bias",
        "parameters.setting was=40 other=128 at=*relative_bias.farthest",
    ),
    Mutant(
        "queries of distances left out",
        patch(attention, distance_scores=of_one_side),
        "masked",
        "attention",
        "operations.operand_alone ordinal=first 'at=`of_queries.gather*'",
    ),
    Mutant(
        "distances from keys to queries",
        patch(disentangled, log_bucket=lambda original: lambda away, *sizes: original(-away, *sizes)),
        "masked",
        "attention",
    ),
    Mutant(
        "distances encoded without their norm",
        instead(disentangled.DistanceEncoding, __call__=lambda self: self.table[...][None]),
        "masked",
    ),
    Mutant(
        "one table of distances for several layers",
        weights(first_table),
        "modern",
        r"parts\.1\.blocks\.1\.relative_bias",
        "layers.shared whose=first length=2",
    ),
    Mutant(
        "slopes as if heads were a power of two",
        instead(positions, alibi_slopes=evenly_spread),
        "slopes",
        "relative_bias",
        "tables.made 'numbers=0.009843, 0.3969, *' own=*",
    ),
]

BLOCKS = [
    Mutant("gain w for 1 + w", config(norm_unit_offset=False), "gemma", NORMS, choice("norm", "gain=plus 1, as it is")),
    Mutant(
        "norm after a sub-layer missing",
        patch(blocks.Block, _after=no_output_norm),
        "gemma",
        r"blocks\.\d",
        "sum.factors 'attention=0, 1' 'attention_output_norm=1, 0' 'at=input of *.feed_forward_norm'"
        " & sum.factors 'attention=0, 1' 'attention_output_norm=1, 0' 'feed_forward=0, 1' 'feed_forward_output_norm=1, 0'",
    ),
    Mutant(
        "norm after a sub-layer after the sum",
        patch(blocks.Block, _after=output_norm_behind_the_sum),
        "gemma",
        r"blocks\.\d",
        "sum.factors 'input=0, 1' at=*.attention_output_norm & sum.factors 'input=1, 0' at=*.feed_forward_norm"
        " & sum.factors 'attention_output_norm=0, 1' at=*.feed_forward_output_norm",
    ),
    Mutant(
        "parallel residual one after the other",
        config(parallel_residual=False),
        "neox",
        r"blocks\.\d",
        "sum.factors 'attention=0, 1' 'at=input of *feed_forward_norm'",
    ),
    Mutant(
        "as many heads in the decoder as in the encoder",
        config(n_decoder_heads=None),
        "separate",
        r"decoder.*attention",
        choice("attention*", "heads=6, 4"),
    ),
    Mutant("bias after narrow embeddings dropped", reads_as(0.0, "project.bias"), "slopes", "project", NO_BIAS),
]

MUTANTS = (*ROTARY, *WINDOWS, *LOGITS, *BIASES, *BLOCKS)
