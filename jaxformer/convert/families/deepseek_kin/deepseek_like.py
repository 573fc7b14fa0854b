"""Models with DeepSeek's attention or experts in transformers' format: GLM-4.7-Flash, Youtu-LLM, GLM-4.5 and dots.llm1."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import PART, read_layers, rope_keys
from jaxformer.convert.families.deepseek_kin.deepseek import (
    DEEPSEEK_V3,
    DEEPSEEK_V3_TYPE,
    EXPERTS,
    HEADS,
    IN_FILES,
    IN_MEMORY,
    LATENTS,
    PREDICTED,
    ROUTER,
    SIGMOIDS,
    TRAINING,
    expert_keys,
    latent_keys,
    read_experts,
    read_latents,
    without_prediction,
)
from jaxformer.convert.families.llama import FIXED, KEYS, LLAMA, LLAMA_TYPE, QWEN, rotary, sizes_of_heads, undo_windows
from jaxformer.convert.model_type import ACTIVATIONS, Field, Only
from jaxformer.errors import ConfigError

GLM4_MOE_LITE = replace(DEEPSEEK_V3, name="glm4_moe_lite")
"""Family for DeepSeek-V3's configuration."""
YOUTU = replace(DEEPSEEK_V3, name="youtu", rules=LATENTS)
"""Family for DeepSeek-V3's configuration without experts."""
GLM4_MOE = replace(DEEPSEEK_V3, name="glm4_moe", rules=(*ROUTER, *IN_FILES, *LLAMA.rules))
"""Family for Llama's configuration with `rotary_dim`, experts as in DeepSeek-V3, and `qk_norm` as in the model."""
DOTS1 = replace(GLM4_MOE, name="dots1")
"""Family for Qwen 3's configuration with experts as in DeepSeek-V3."""
GLM_MEMORY = replace(GLM4_MOE, name="glm_moe_memory", rules=(*ROUTER, *IN_MEMORY, *LLAMA.rules))
"""Family of the last two types' models in the memory of transformers 5."""

KINDS = {"dense": 0, "sparse": 1}
"""transformers' kinds of feed-forward layers -> 1 if they have experts."""


def _lite(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the number of dense layers: without `mlp_layer_types`, one."""
    kinds = found.pop("kinds") or ["dense"] + ["sparse"] * (found["n_layers"] - 1)
    if len(kinds) != found["n_layers"] or {*kinds} - {*KINDS} or kinds != sorted(kinds, key=lambda kind: KINDS[kind]):
        raise ConfigError(
            f"mlp_layer_types = {kinds!r:.60} is not supported; give {found['n_layers']}, 'dense' for the first layers and "
            "'sparse' for all others"
        )
    return read_experts(read_latents(found | {"dense_layers": kinds.count("dense")}))


def _lite_keys(config: GPTConfig) -> dict[str, Any]:
    keys = latent_keys(config) | expert_keys(config)
    first = keys.pop("first_k_dense_replace", config.dense_layers)
    return keys | {"mlp_layer_types": ["dense"] * first + ["sparse"] * (config.n_layers - first)}


GLM4_MOE_LITE_TYPE = replace(
    DEEPSEEK_V3_TYPE,
    name="glm4_moe_lite",
    family=GLM4_MOE_LITE,
    variant=without_prediction(GLM4_MOE_LITE),
    keys=HEADS
    | EXPERTS
    | {
        "vocab_size": Field("vocab_size", 154880),
        "hidden_size": Field("d_model", 2048),
        "intermediate_size": Field("dense_d_ff", 10240),
        "moe_intermediate_size": Field("d_ff", 1536),
        "num_hidden_layers": Field("n_layers", 47),
        "num_attention_heads": Field("n_heads", 20),
        "max_position_embeddings": Field("context", 202752),
        "rms_norm_eps": Field("norm_epsilon", 1e-5),
        "q_lora_rank": Field("query_latent", 768),
        "qk_nope_head_dim": Field("latent_units", 192),
        "v_head_dim": Field("value_dim", 256),
        "n_routed_experts": Field("n_experts", 64),
        "num_experts_per_tok": Field("experts_per_token", 4),
        "n_group": Field("expert_groups", 1),
        "topk_group": Field("groups_per_token", 1),
        "routed_scaling_factor": Field("router_scale", 1.8),
        "mlp_layer_types": Field("kinds", None),
        "first_k_dense_replace": Only(1, "transformers reads mlp_layer_types for it"),
    },
    model="Glm4MoeLiteForCausalLM",
    base="Glm4MoeLiteModel",
    derive=_lite,
    undo=_lite_keys,
)
YOUTU_TYPE = replace(
    DEEPSEEK_V3_TYPE,
    name="youtu",
    family=YOUTU,
    variant=None,
    memory=None,
    keys=HEADS
    | {
        "vocab_size": Field("vocab_size", 128256),
        "hidden_size": Field("d_model", 2048),
        "intermediate_size": Field("d_ff", 6144),
        "num_hidden_layers": Field("n_layers", 32),
        "num_attention_heads": Field("n_heads", 16),
        "max_position_embeddings": Field("context", 131072),
        "tie_word_embeddings": Field("tied", True),
    },
    fixed={name: value for name, value in DEEPSEEK_V3_TYPE.fixed.items() if name not in SIGMOIDS},
    model="YoutuForCausalLM",
    base="YoutuModel",
    harmless=frozenset(["embedding_initializer_range", "head_dim", "qk_head_dim"]),
    derive=read_latents,
    undo=latent_keys,
)


def _glm(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the width of heads, which need not divide that of the model."""
    return read_mixed(rotary(found | {"head_dim": found["head_dim"] or found["d_model"] // found["n_heads"]}))


def read_mixed(found: dict[str, Any]) -> dict[str, Any]:
    """Set the experts of a type that is no other one without them."""
    if found["dense_layers"] >= found["n_layers"]:
        raise ConfigError(
            f"first_k_dense_replace = {found['dense_layers']} leaves none of {found['n_layers']} layers to experts"
        )
    return read_experts(found)


GLM4_MOE_TYPE = replace(
    LLAMA_TYPE,
    name="glm4_moe",
    family=GLM4_MOE,
    variant=without_prediction(GLM4_MOE),
    memory=GLM_MEMORY,
    keys=KEYS
    | EXPERTS
    | {
        "vocab_size": Field("vocab_size", 151552),
        "hidden_size": Field("d_model", 4096),
        "intermediate_size": Field("dense_d_ff", 10944),
        "moe_intermediate_size": Field("d_ff", 1408),
        "num_hidden_layers": Field("n_layers", 46),
        "num_attention_heads": Field("n_heads", 96),
        "num_key_value_heads": Field("n_kv_heads", 8),
        "max_position_embeddings": Field("context", 131072),
        "hidden_act": Field("activation", "silu", ACTIVATIONS),
        "rms_norm_eps": Field("norm_epsilon", 1e-5),
        "attention_bias": Field("qkv_bias", False),
        "use_qk_norm": Field("qk_norm", False),
        "first_k_dense_replace": Field("dense_layers", 1),
        "n_routed_experts": Field("n_experts", 128),
        "n_group": Field("expert_groups", 1),
        "topk_group": Field("groups_per_token", 1),
        "routed_scaling_factor": Field("router_scale", 1.0),
        PART: Field(PART, 0.5),
    },
    fixed=FIXED | SIGMOIDS | {"output_bias": False, "feed_forward_bias": False},
    model="Glm4MoeForCausalLM",
    base="Glm4MoeModel",
    harmless=TRAINING | PREDICTED,
    derive=_glm,
    undo=lambda config: sizes_of_heads(config) | rope_keys(config, part=True) | expert_keys(config),
)


def _dots(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the layers with a sliding window: without `layer_types`, those from `max_window_layers` on."""
    first, types = found.pop("max_window_layers"), found.pop("layer_types")
    near = [found["window"] is not None and i >= first for i in range(found["n_layers"])]
    types = types or ["sliding_attention" if it else "full_attention" for it in near]
    return read_mixed(rotary(found | read_layers(types, found)))


def _dots_keys(config: GPTConfig) -> dict[str, Any]:
    keys = undo_windows(config) | expert_keys(config)
    return {name: value for name, value in keys.items() if name != "use_sliding_window"}


DOTS1_TYPE = replace(
    GLM4_MOE_TYPE,
    name="dots1",
    family=DOTS1,
    variant=None,
    keys={name: key for name, key in (QWEN | EXPERTS).items() if name != "use_sliding_window"}
    | {
        "vocab_size": Field("vocab_size", 152064),
        "hidden_size": Field("d_model", 4608),
        "intermediate_size": Field("dense_d_ff", 10944),
        "moe_intermediate_size": Field("d_ff", 1408),
        "num_hidden_layers": Field("n_layers", 62),
        "max_position_embeddings": Field("context", 2048),
        "max_window_layers": Field("max_window_layers", 62),
        "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
        "head_dim": Field("head_dim", None),
        "first_k_dense_replace": Field("dense_layers", 0),
        "n_routed_experts": Field("n_experts", None),
        "n_shared_experts": Field("shared_experts", None),
        "num_experts_per_tok": Field("experts_per_token", None),
        "n_group": Field("expert_groups", 1),
        "topk_group": Field("groups_per_token", 1),
        "norm_topk_prob": Field("router_normalised", False),
        "routed_scaling_factor": Field("router_scale", 1.0),
    },
    fixed=FIXED | SIGMOIDS | {"feed_forward_bias": False, "qk_norm": True},
    model="Dots1ForCausalLM",
    base="Dots1Model",
    harmless=TRAINING,
    derive=_dots,
    undo=_dots_keys,
)
