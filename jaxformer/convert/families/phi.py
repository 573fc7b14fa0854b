"""Phi (1, 1.5 and 2), Phi-3 (with Phi-3.5 and Phi-4) and Persimmon in transformers' format."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import PART, ROPE, rope_keys
from jaxformer.convert.families.glm import GATE_UP
from jaxformer.convert.families.llama import FIXED, HEADS, LLAMA, LLAMA_TYPE, NAMES, NO_BIAS, rotary
from jaxformer.convert.families.llama_like import keys_of
from jaxformer.convert.family import module_rules, packed_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType

_NAMES = {
    "embed.token": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.query_norm": "self_attn.q_layernorm",
    "attention.key_norm": "self_attn.k_layernorm",
    "feed_forward.up": "mlp.fc1",
    "feed_forward.down": "mlp.fc2",
    "norm": "model.final_layernorm",
    "head": "lm_head",
}

PHI = replace(
    LLAMA,
    name="phi",
    rules=(
        *projection_rules("attention", "self_attn", ("q_proj", "k_proj", "v_proj"), "dense"),
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
)
"""Family for `GPTConfig(positions="none", rotary="half", rotary_dim=..., parallel_residual=True, shared_norm=True,
activation="gelu_tanh", head_bias=True)`."""
PHI3 = replace(
    LLAMA,
    name="phi3",
    rules=(
        *packed_rules("attention", "self_attn.qkv_proj", "(K G H + K H + K H)"),
        *module_rules("attention.out", "self_attn.o_proj"),
        *GATE_UP,
        *(rule for pair in NAMES.items() for rule in module_rules(*pair)),
    ),
)
"""Family for Llama's configuration with `rotary_dim`, `rotary_scaling="longrope"` and a `window` as in the model;
projections are fused or separate."""


def _phi(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the head's bias, which a model without a head has not, and the kind of norm of queries and keys."""
    return _normed(found | {"head_bias": "lm_head.bias" in names})


def _normed(found: dict[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
    """Set the kind of norm of queries and keys, if they have one."""
    return rotary(found | ({"qk_norm_kind": "layer", "qk_norm_bias": True} if found["qk_norm"] else {}))


PHI_TYPE = ModelType(
    name="phi",
    config=GPTConfig,
    family=PHI,
    keys={
        "vocab_size": Field("vocab_size", 51200),
        "hidden_size": Field("d_model", 2048),
        "intermediate_size": Field("d_ff", 8192),
        "num_hidden_layers": Field("n_layers", 24),
        "num_attention_heads": Field("n_heads", 32),
        "num_key_value_heads": Field("n_kv_heads", None),
        "max_position_embeddings": Field("context", 2048),
        "hidden_act": Field("activation", "gelu_new", ACTIVATIONS),
        "layer_norm_eps": Field("norm_epsilon", 1e-5),
        "resid_pdrop": Field("residual_dropout", 0.0),
        "embd_pdrop": Field("embedding_dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "pad_token_id": Field("padding_idx", None),
        "tie_word_embeddings": Field("tied", False),
        "qk_layernorm": Field("qk_norm", False),
        PART: Field(PART, 0.5),
        **ROPE,
    },
    fixed={"positions": "none", "rotary": "half", "parallel_residual": True, "shared_norm": True},
    model="PhiForCausalLM",
    base="PhiModel",
    prefix="model.",
    heads=HEADS | {"classifier.": "classification"},
    harmless=frozenset(["n_head", "n_head_kv", "n_layer", "n_positions"]),
    derive=_phi,
    undo=lambda config: {"num_key_value_heads": config.kv_heads} | rope_keys(config, part=True),
)


def _phi3(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set rotary positions: the original context has a key of its own, and the first files call LongRoPE su or yarn."""
    original = found.pop("original_max_position_embeddings")
    for name in ("rope_parameters", "rope_scaling"):
        rope = dict(found[name] or {})
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind in ("su", "yarn", "longrope"):
            found[name] = rope | {"rope_type": "longrope", "original_max_position_embeddings": original}
    return rotary(found)


def _undo_phi3(config: GPTConfig) -> dict[str, Any]:
    original = config.rotary_original_context
    original = {} if original is None else {"original_max_position_embeddings": original}
    return {"num_key_value_heads": config.kv_heads} | rope_keys(config, part=True) | original


PHI3_TYPE = replace(
    LLAMA_TYPE,
    name="phi3",
    family=PHI3,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 32064),
            "hidden_size": Field("d_model", 3072),
            "intermediate_size": Field("d_ff", 8192),
            "max_position_embeddings": Field("context", 4096),
            "original_max_position_embeddings": Field("original_max_position_embeddings", 4096),
            "rms_norm_eps": Field("norm_epsilon", 1e-5),
            "resid_pdrop": Field("residual_dropout", 0.0),
            "pad_token_id": Field("padding_idx", 32000),
            "sliding_window": Field("window", None),
            PART: Field(PART, 1.0),
        },
        without=("head_dim", "attention_bias", "mlp_bias"),
    ),
    fixed=FIXED | NO_BIAS | {"projections": "fused"},
    model="Phi3ForCausalLM",
    base="Phi3Model",
    heads=HEADS | {"classifier.": "classification"},
    harmless=frozenset(["embd_pdrop", "attention_bias", "interpolate_factor", "lm_head_bias", "mlp_bias"]),
    derive=_phi3,
    undo=_undo_phi3,
)


_PERSIMMON_NAMES = {
    "embed.token": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.query_norm": "self_attn.q_layernorm",
    "attention.key_norm": "self_attn.k_layernorm",
    "attention.out": "self_attn.dense",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.up": "mlp.dense_h_to_4h",
    "feed_forward.down": "mlp.dense_4h_to_h",
    "norm": "model.final_layernorm",
    "head": "lm_head",
}

PERSIMMON = replace(
    LLAMA,
    name="persimmon",
    rules=(
        *packed_rules("attention", "self_attn.query_key_value"),
        *(rule for pair in _PERSIMMON_NAMES.items() for rule in module_rules(*pair)),
    ),
)
"""Family for `GPTConfig(positions="none", rotary="half", rotary_dim=..., activation="relu_squared", qk_norm=True,
qk_norm_kind="layer", qk_norm_bias=True)`; projections are fused or separate."""


PERSIMMON_TYPE = replace(
    LLAMA_TYPE,
    name="persimmon",
    family=PERSIMMON,
    keys=keys_of(
        {
            "vocab_size": Field("vocab_size", 262144),
            "intermediate_size": Field("d_ff", 16384),
            "num_hidden_layers": Field("n_layers", 36),
            "num_attention_heads": Field("n_heads", 64),
            "max_position_embeddings": Field("context", 16384),
            "hidden_act": Field("activation", "relu2", ACTIVATIONS),
            "layer_norm_eps": Field("norm_epsilon", 1e-5),
            "hidden_dropout": Field("residual_dropout", 0.0),  # torch drops nothing of attention's output
            "qk_layernorm": Field("qk_norm", True),
            PART: Field(PART, 0.5),
        },
        without=("rms_norm_eps", "head_dim", "attention_bias", "mlp_bias", "num_key_value_heads"),
    ),
    fixed={"positions": "none", "rotary": "half", "projections": "fused"},
    model="PersimmonForCausalLM",
    base="PersimmonModel",
    harmless=frozenset(),
    derive=_normed,
    undo=lambda config: rope_keys(config, part=True),
)
