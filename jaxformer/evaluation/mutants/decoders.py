"""Mutants of the options of single families of decoders: Cohere, OLMo, nanochat and others."""

from collections.abc import Callable
from typing import Any

from jax import Array

from jaxformer.evaluation.inject import Mutant, config, patch
from jaxformer.evaluation.mutants.switches import no_output_norm
from jaxformer.evaluation.outcome import choice
from jaxformer.nn import blocks


def reads_unnormed(original: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Let the feed-forward layer of a shared norm read the states without it."""

    def attend(self: Any, x: Array, *more: Any) -> tuple[Any, ...]:
        summed, _, cache = original(self, x, *more)
        return summed, x, cache

    return attend


MUTANTS = [
    Mutant(
        "rotary positions in every layer",
        config(rotary_pattern=None),
        "cohere",
        r"blocks\.1\.attention",
        "rotary_heads.added base=10000 layout=neighbours",
    ),
    Mutant(
        "queries, keys and values not clamped",
        config(clip_qkv=None),
        "cohere",
        "attention",
        "operations.left_out at=*clamp(-self.clip*",
    ),
    Mutant("factor of sub-layers missing", config(residual_multiplier=1.0), "cohere"),
    Mutant("factor of embeddings missing", config(embedding_multiplier=1.0), "cohere", "embed", "sum.factors 'token=3, 1'"),
    Mutant(
        "sqrt(2 / pi) not rounded",
        config(activation="gelu_tanh"),
        "cohere",
        "feed_forward",
        "arguments.number was=0.7979 value=0.7979 at=1 'at=*0.79788456 * (x + 0.044715*'",
    ),
    Mutant("the feed-forward layer without the shared norm", patch(blocks.Block, _attend=reads_unnormed), "cohere"),
    Mutant("norm behind a sub-layer missing", patch(blocks.Block, _after=no_output_norm), "olmo"),
    Mutant(
        "relu not squared",
        config(activation="relu"),
        "olmo",
        "feed_forward",
        choice("activation", "activation=squared relu, relu"),
    ),
    Mutant("long texts by the short factors", config(rotary_original_context=4096), "olmo", "attention"),
    Mutant(
        "rotated forwards",
        config(rotary_reversed=False),
        "nanochat",
        "attention",
        "operations.left_out 'at=`angles.sin() * (-amplitude*'",
    ),
    Mutant(
        "queries and keys normed before their rotation",
        config(qk_norm_after_rotary=False),
        "heads",
        "attention",
        "reroute.array how=run number=* runs=* 'at=the input of *.query_norm' at=*"
        " | parameters.choice was=True other=False at=*norm_late",
    ),
    Mutant(
        "RMSNorm of queries and keys for LayerNorm",
        config(qk_norm_kind="rms"),
        "heads",
        "query_norm|key_norm",
        "operations.norm how=rms",
    ),
    Mutant(
        "a base that does not grow",
        config(rotary_original_context=4096),
        "growing",
        "attention",
        "operations.operand_alone ordinal=first 'at=`angles * growth*'",
    ),
]
