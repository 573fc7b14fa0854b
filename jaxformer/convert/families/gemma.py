"""Gemma, Gemma 2 and the text model of Gemma 3 in transformers' format: Llama's names, from Gemma 2 on with an additional norm
after each sub-layer."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import layer_types, read_by_layer, read_layers, rope_by_layer, rope_keys
from jaxformer.convert.families.llama import FIXED, HEADS, KEYS, LLAMA, NAMES, PROJECTIONS, rotary, sizes_of_heads
from jaxformer.convert.family import module_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, Key, ModelType, Only

_NAMES = NAMES | {
    "attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}

GEMMA = replace(LLAMA, name="gemma")
"""Family for Llama's configuration with `norm_unit_offset=True, activation="gelu_tanh", embedding_scale=True, tied=True,
padding_idx=0`."""
GEMMA2 = replace(
    LLAMA,
    name="gemma2",
    rules=(*PROJECTIONS, *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch))),
)
"""Family for Llama's configuration with `norm_position="sandwich", norm_unit_offset=True, activation="gelu_tanh",
embedding_scale=True, tied=True, padding_idx=0`, and with `attention_scale`, soft caps, `window` and `layer_pattern`."""
GEMMA3 = replace(GEMMA2, name="gemma3_text")
"""Family for Gemma 2's configuration with `qk_norm=True` and a `rotary_window_base`."""


def _layers(found: dict[str, Any], period: int) -> dict[str, Any]:
    """Set the attention scale, and the layers with a sliding window: without `layer_types`, all but every `period`-th."""
    types, scalar = found.pop("layer_types"), found.pop("query_pre_attn_scalar")
    if types is None:
        every = range(1, found["n_layers"] + 1)
        types = ["sliding_attention" if i % period else "full_attention" for i in every]
    return found | read_layers(types, found) | {"attention_scale": scalar**-0.5}


def _gemma2(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return rotary(_layers(found, 2))


def _undo(config: GPTConfig) -> dict[str, Any]:
    scalar = config.head_width if config.attention_scale is None else round(config.attention_scale**-2)
    return sizes_of_heads(config) | {"layer_types": layer_types(config), "query_pre_attn_scalar": scalar}


_KEYS: dict[str, Key] = KEYS | {
    "vocab_size": Field("vocab_size", 256000),
    "max_position_embeddings": Field("context", 8192),
    "hidden_size": Field("d_model", 2304),
    "intermediate_size": Field("d_ff", 9216),
    "num_hidden_layers": Field("n_layers", 26),
    "num_attention_heads": Field("n_heads", 8),
    "num_key_value_heads": Field("n_kv_heads", 4),
    "head_dim": Field("head_dim", 256),
    "hidden_activation": Field("activation", "gelu_pytorch_tanh", ACTIVATIONS),
    "pad_token_id": Field("padding_idx", 0),
    "tie_word_embeddings": Field("tied", True),
    "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
    "sliding_window": Field("window", 4096),
    "layer_types": Field("layer_types", None),
    "query_pre_attn_scalar": Field("query_pre_attn_scalar", 256),
    "final_logit_softcapping": Field("logits_softcap", 30.0),
    "attn_logit_softcapping": Field("attention_softcap", 50.0),
    "use_bidirectional_attention": Only(False, "every token would see the later ones there, and does not here"),
}
_LATER = ("hidden_activation", "sliding_window", "layer_types", "query_pre_attn_scalar")
_LATER += ("final_logit_softcapping", "attn_logit_softcapping")
"""Keys that the first Gemma has not."""
_TANH = {"gelu_pytorch_tanh": "gelu_tanh"} | ACTIVATIONS | {"gelu": "gelu_tanh"}
"""Activations of the first Gemma, whose `gelu` means the form by tanh."""

GEMMA_TYPE = ModelType(
    name="gemma",
    config=GPTConfig,
    family=GEMMA,
    keys={name: key for name, key in _KEYS.items() if name not in _LATER}
    | {
        "hidden_size": Field("d_model", 3072),
        "intermediate_size": Field("d_ff", 24576),
        "num_hidden_layers": Field("n_layers", 28),
        "num_attention_heads": Field("n_heads", 16),
        "num_key_value_heads": Field("n_kv_heads", 16),
        "hidden_act": Field("activation", "gelu_pytorch_tanh", _TANH),
    },
    fixed=FIXED | {"norm_unit_offset": True, "embedding_scale": True, "feed_forward_bias": False},
    model="GemmaForCausalLM",
    base="GemmaModel",
    prefix="model.",
    heads=HEADS,
    harmless=frozenset(["hidden_activation"]),  # transformers does not read it
    derive=rotary,
    undo=lambda config: sizes_of_heads(config) | rope_keys(config),
)
GEMMA2_TYPE = ModelType(
    name="gemma2",
    config=GPTConfig,
    family=GEMMA2,
    keys=_KEYS,
    fixed=FIXED | {"norm_position": "sandwich", "norm_unit_offset": True, "embedding_scale": True, "feed_forward_bias": False},
    model="Gemma2ForCausalLM",
    base="Gemma2Model",
    prefix="model.",
    heads=HEADS,
    harmless=frozenset(["cache_implementation", "hidden_act", "sliding_window_size"]),  # transformers does not read them
    derive=_gemma2,
    undo=lambda config: _undo(config) | rope_keys(config),
)


def _gemma3(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set rotary positions: layers with a sliding window have their own, which are not scaled."""
    found = _layers(found, found.pop("sliding_window_pattern"))
    parameters, scaling = found.pop("rope_parameters") or {}, found.pop("rope_scaling") or {}
    theta, local = found.pop("rope_theta"), found.pop("rope_local_base_freq")
    whole = {"rope_theta": theta or 1e6} | (parameters.get("full_attention") or {}) | scaling
    near = {"rope_theta": local or 1e4} | (parameters.get("sliding_attention") or {})
    return found | read_by_layer(parameters, whole, near, found)


def _undo_gemma3(config: GPTConfig) -> dict[str, Any]:
    keys = {"rope_parameters": (by_layer := rope_by_layer(config))}
    near = by_layer["sliding_attention"]
    if near["rope_type"] == "default":  # versions before 5 can represent it
        keys |= rope_keys(config) | keys | {"rope_local_base_freq": near["rope_theta"]}
    return _undo(config) | keys


GEMMA3_TYPE = replace(
    GEMMA2_TYPE,
    name="gemma3_text",
    family=GEMMA3,
    keys={name: key for name, key in _KEYS.items() if name != "attn_logit_softcapping"}
    | {
        "vocab_size": Field("vocab_size", 262208),
        "max_position_embeddings": Field("context", 131072),
        "final_logit_softcapping": Field("logits_softcap", None),
        "sliding_window_pattern": Field("sliding_window_pattern", 6),
        "rope_local_base_freq": Field("rope_local_base_freq", None),
    },
    fixed={**GEMMA2_TYPE.fixed, "qk_norm": True},
    model="Gemma3ForCausalLM",
    base="Gemma3TextModel",
    harmless=GEMMA2_TYPE.harmless | {"_sliding_window_pattern", "attn_logit_softcapping"},  # transformers does not read them
    derive=_gemma3,
    undo=_undo_gemma3,
)
