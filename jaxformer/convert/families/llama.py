"""Llama in transformers' format (`LlamaForCausalLM`), and models with the same names: Mistral, Qwen 2 and Qwen 3."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import ROPE, layer_types, read_layers, rope_keys, take_rope
from jaxformer.convert.family import Family, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, Key, ModelType, Only

NAMES = {
    "embed.token": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "norm": "model.norm",
    "head": "lm_head",
}
PROJECTIONS = projection_rules("attention", "self_attn", ("q_proj", "k_proj", "v_proj"), "o_proj")
HEADS = {"score.": "classification", "qa_outputs.": "answers in a text"}

LLAMA = Family(
    name="llama",
    stacks={"stack.blocks.": "model.layers.{layer}."},
    rules=(*PROJECTIONS, *(rule for jax, torch in NAMES.items() for rule in module_rules(jax, torch))),
    tied={"lm_head.weight": "model.embed_tokens.weight"},
    ignored={"rotary_emb.inv_freq": "the angles of rotary positions, which the model computes"},
)
"""Family for `GPTConfig(norm="rms", norm_epsilon=1e-6, positions="none", rotary="half", activation="silu", gated=True,
qkv_bias=False, output_bias=False, feed_forward_bias=False)`, with the model's own `n_kv_heads` and `rotary_scaling`."""
MISTRAL = replace(LLAMA, name="mistral")
"""Family for Llama's configuration with a `window`."""
QWEN2 = replace(LLAMA, name="qwen2")
"""Family for Llama's configuration with `qkv_bias=True`, and with `window` and `layer_pattern` as in the model."""
QWEN3 = replace(LLAMA, name="qwen3")
"""Family for Llama's configuration with `qk_norm=True`, and with `window` and `layer_pattern` as in the model."""

KEYS: dict[str, Key] = {
    "vocab_size": Field("vocab_size", 32000),
    "max_position_embeddings": Field("context", 2048),
    "hidden_size": Field("d_model", 4096),
    "intermediate_size": Field("d_ff", 11008),
    "num_hidden_layers": Field("n_layers", 32),
    "num_attention_heads": Field("n_heads", 32),
    "num_key_value_heads": Field("n_kv_heads", None),
    "head_dim": Field("head_dim", None),
    "rms_norm_eps": Field("norm_epsilon", 1e-6),
    "pad_token_id": Field("padding_idx", None),
    "attention_dropout": Field("attention_dropout", 0.0),
    "tie_word_embeddings": Field("tied", False),
    **ROPE,
}
_KEYS: dict[str, Key] = KEYS | {"hidden_act": Field("activation", "silu", ACTIVATIONS)}
_BIASES: dict[str, Key] = {
    "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
    "mlp_bias": Field("feed_forward_bias", False),
    "rope_interleaved": Only(False, "other units of a head would pair"),
}
FIXED = {"positions": "none", "rotary": "half", "norm": "rms", "gated": True}
NO_BIAS = {"qkv_bias": False, "output_bias": False, "feed_forward_bias": False}


def rotary(found: dict[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
    """Set the rotary fields; a negative padding id counts from the end of the vocabulary, as in torch.nn.Embedding."""
    found = found | take_rope(found)
    if found["padding_idx"] is not None and found["padding_idx"] < 0:
        found["padding_idx"] += found["vocab_size"]
    return found


def sizes_of_heads(config: GPTConfig) -> dict[str, Any]:
    """Return the keys for key/value heads and head width with explicit values: some versions of transformers refuse null."""
    return {"num_key_value_heads": config.kv_heads, "head_dim": config.head_width}


def _undo(config: GPTConfig) -> dict[str, Any]:
    return sizes_of_heads(config) | rope_keys(config)


LLAMA_TYPE = ModelType(
    name="llama",
    config=GPTConfig,
    family=LLAMA,
    keys=_KEYS | _BIASES,
    fixed=FIXED,
    model="LlamaForCausalLM",
    base="LlamaModel",
    prefix="model.",
    heads=HEADS,
    harmless=frozenset(["is_llama_config", "max_sequence_length", "pretraining_tp"]),
    derive=rotary,
    undo=_undo,
)
MISTRAL_TYPE = replace(
    LLAMA_TYPE,
    name="mistral",
    family=MISTRAL,
    keys=_KEYS
    | {
        "intermediate_size": Field("d_ff", 14336),
        "num_key_value_heads": Field("n_kv_heads", 8),
        "max_position_embeddings": Field("context", 131072),
        "sliding_window": Field("window", 4096),
    },
    fixed=FIXED | NO_BIAS,
    model="MistralForCausalLM",
    base="MistralModel",
    harmless=frozenset(),
)


def _late_windows(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the layers with a sliding window: without `layer_types`, those from `max_window_layers` on."""
    used, first, types = (found.pop(name) for name in ("use_sliding_window", "max_window_layers", "layer_types"))
    found["window"] = found["window"] if used else None
    if types is None:
        late = [found["window"] is not None and i >= first for i in range(found["n_layers"])]
        types = ["sliding_attention" if it else "full_attention" for it in late]
    return rotary(found | read_layers(types, found))


def undo_windows(config: GPTConfig) -> dict[str, Any]:
    """Return the keys for rotary positions, head sizes and layers with a sliding window."""
    types = layer_types(config)
    first = types.index("sliding_attention") if config.window is not None else config.n_layers
    return _undo(config) | {
        "layer_types": types,
        "max_window_layers": first,
        "use_sliding_window": config.window is not None,
    }


QWEN: dict[str, Key] = _KEYS | {
    "vocab_size": Field("vocab_size", 151936),
    "max_position_embeddings": Field("context", 32768),
    "intermediate_size": Field("d_ff", 22016),
    "num_key_value_heads": Field("n_kv_heads", 32),
    "sliding_window": Field("window", 4096),
    "use_sliding_window": Field("use_sliding_window", False),
    "max_window_layers": Field("max_window_layers", 28),
    "layer_types": Field("layer_types", None),
}
QWEN2_TYPE = replace(
    MISTRAL_TYPE,
    name="qwen2",
    family=QWEN2,
    keys=QWEN | {"use_mrope": Only(False, "positions would be of three kinds")},
    fixed=FIXED | NO_BIAS | {"qkv_bias": True},
    model="Qwen2ForCausalLM",
    base="Qwen2Model",
    derive=_late_windows,
    undo=undo_windows,
)
QWEN3_TYPE = replace(
    QWEN2_TYPE,
    name="qwen3",
    family=QWEN3,
    keys=QWEN
    | {
        "head_dim": Field("head_dim", 128),
        "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
    },
    fixed=FIXED | {"feed_forward_bias": False, "qk_norm": True},
    model="Qwen3ForCausalLM",
    base="Qwen3Model",
)
