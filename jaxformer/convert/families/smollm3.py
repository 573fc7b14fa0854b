"""SmolLM 3 in transformers' format: Llama's names, and layers without rotary positions."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import layer_types, read_layers, read_rotated, rope_keys, rotated_layers
from jaxformer.convert.families.llama import LLAMA, LLAMA_TYPE, rotary
from jaxformer.convert.families.llama_like import keys_of
from jaxformer.convert.model_type import Field

SMOLLM3 = replace(LLAMA, name="smollm3")
"""Family for Llama's configuration with a `rotary_pattern`, and with `window` and `layer_pattern` as in the model."""


def _smollm3(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the layers without rotary positions, every fourth one unless they are given, and those with a sliding window."""
    rotated, interval = found.pop("no_rope_layers"), found.pop("no_rope_layer_interval")
    used, types = found.pop("use_sliding_window"), found.pop("layer_types")
    if rotated is None:
        rotated = [(i + 1) % interval != 0 for i in range(found["n_layers"])]
    found = rotary(found)
    found |= read_rotated(rotated, found)
    if not used or found["window"] is None:
        return found | {"window": None}
    return found | read_layers(types or ["full_attention" if it else "sliding_attention" for it in rotated], found)


def _undo_smollm3(config: GPTConfig) -> dict[str, Any]:
    keys = {"num_key_value_heads": config.kv_heads, "use_sliding_window": config.window is not None}
    keys |= {"no_rope_layers": rotated_layers(config), "layer_types": layer_types(config)}
    return rope_keys(config) | keys


SMOLLM3_TYPE = replace(
    LLAMA_TYPE,
    name="smollm3",
    family=SMOLLM3,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 128256),
            "hidden_size": Field("d_model", 2048),
            "num_hidden_layers": Field("n_layers", 36),
            "num_attention_heads": Field("n_heads", 16),
            "num_key_value_heads": Field("n_kv_heads", 4),
            "max_position_embeddings": Field("context", 32768),
            "rope_theta": Field("rope_theta", 2e6),
            "pad_token_id": Field("padding_idx", 128004),
            "tie_word_embeddings": Field("tied", True),
            "no_rope_layers": Field("no_rope_layers", None),
            "no_rope_layer_interval": Field("no_rope_layer_interval", 4),
            "use_sliding_window": Field("use_sliding_window", False),
            "sliding_window": Field("window", None),
            "layer_types": Field("layer_types", None),
        },
        without=("head_dim",),
    ),
    model="SmolLM3ForCausalLM",
    base="SmolLM3Model",
    harmless=frozenset(["max_window_layers", "pretraining_tp"]),
    derive=_smollm3,
    undo=_undo_smollm3,
)
