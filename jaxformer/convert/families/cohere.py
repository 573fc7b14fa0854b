"""Cohere (Command R) and Cohere 2 (Command R7B, Aya) in transformers' format: Llama's names, one norm for both branches of a
parallel residual connection, and rotary pairs that lie side by side."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import layer_types, read_layers, read_rotated, rope_keys
from jaxformer.convert.families.llama import FIXED, LLAMA, LLAMA_TYPE, rotary
from jaxformer.convert.families.llama_like import keys_of, normed
from jaxformer.convert.model_type import Field

COHERE = replace(LLAMA, name="cohere")
"""Family for Llama's configuration with `norm="layer", norm_bias=False, parallel_residual=True, shared_norm=True,
rotary="interleaved", tied=True`, and with `logits_scale`."""
COHERE2 = replace(COHERE, name="cohere2")
"""Family for Cohere's configuration with `window`, `layer_pattern`, and rotary positions in layers with a window alone."""


COHERE_TYPE = replace(
    LLAMA_TYPE,
    name="cohere",
    family=COHERE,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 256000),
            "hidden_size": Field("d_model", 8192),
            "intermediate_size": Field("d_ff", 22528),
            "num_hidden_layers": Field("n_layers", 40),
            "num_attention_heads": Field("n_heads", 64),
            "max_position_embeddings": Field("context", 8192),
            "layer_norm_eps": Field("norm_epsilon", 1e-5),
            "logit_scale": Field("logits_scale", 0.0625),
            "pad_token_id": Field("padding_idx", 0),
            "rope_theta": Field("rope_theta", 5e5),
            "tie_word_embeddings": Field("tied", True),
            "use_qk_norm": Field("qk_norm", False),
        },
        without=("rms_norm_eps", "head_dim", "mlp_bias"),
    ),
    fixed=FIXED
    | {"norm": "layer", "norm_bias": False, "feed_forward_bias": False, "rotary": "interleaved"}
    | {"parallel_residual": True, "shared_norm": True},
    model="CohereForCausalLM",
    base="CohereModel",
    harmless=frozenset(["pretraining_tp"]),
    derive=lambda found, names: rotary(normed(found)),
    undo=lambda config: {"num_key_value_heads": config.kv_heads} | rope_keys(config),
)


def _cohere2(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the layers with a sliding window, without `layer_types` all but every fourth; the others do not rotate."""
    types, period = found.pop("layer_types"), found.pop("sliding_window_pattern")
    if types is None:
        types = ["sliding_attention" if i % period else "full_attention" for i in range(1, found["n_layers"] + 1)]
    found = rotary(found | read_layers(types, found))
    return found | read_rotated([it == "sliding_attention" for it in types], found)


def _undo_cohere2(config: GPTConfig) -> dict[str, Any]:
    return {"num_key_value_heads": config.kv_heads, "layer_types": layer_types(config)} | rope_keys(config)


COHERE2_TYPE = replace(
    COHERE_TYPE,
    name="cohere2",
    family=COHERE2,
    keys={name: key for name, key in COHERE_TYPE.keys.items() if name != "use_qk_norm"}
    | {
        "rope_theta": Field("rope_theta", 1e4),
        "sliding_window": Field("window", 4096),
        "sliding_window_pattern": Field("sliding_window_pattern", 4),
        "layer_types": Field("layer_types", None),
        "head_dim": Field("head_dim", None),
    },
    model="Cohere2ForCausalLM",
    base="Cohere2Model",
    harmless=COHERE_TYPE.harmless
    | {"_sliding_window_pattern", "cache_implementation", "order_of_interleaved_layers", "position_embedding_type"}
    | {
        "rotary_pct",
        "use_embedding_sharing",
        "use_gated_activation",
        "use_parallel_block",
        "use_parallel_embedding",
        "use_qk_norm",
    },
    derive=_cohere2,
    undo=_undo_cohere2,
)
