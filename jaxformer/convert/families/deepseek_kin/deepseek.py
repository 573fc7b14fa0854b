"""DeepSeek-V2 and V3 in transformers' format, and models with the same attention: latents of keys and values, and, behind a few
dense layers, layers with groups of experts."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from jaxformer.config.experts import ExpertsConfig
from jaxformer.config.layer_kinds import LayerKindsConfig
from jaxformer.config.models import GPTConfig
from jaxformer.convert.axes import Part
from jaxformer.convert.decoder_keys import rope_keys
from jaxformer.convert.families.llama import FIXED, KEYS, LLAMA_TYPE, NAMES, rotary
from jaxformer.convert.families.mixtures import EACH, MIXTRAL, PACKED, expert_rules
from jaxformer.convert.family import Family, Rule, module_rules, stacks_below
from jaxformer.convert.model_type import ACTIVATIONS, Field, Key, Only
from jaxformer.errors import ConfigError

_NAMES = {name: torch for name, torch in NAMES.items() if not name.startswith("attention.")} | {
    "attention.query": "self_attn.q_proj",
    "attention.query_down": "self_attn.q_a_proj",
    "attention.query_norm": "self_attn.q_a_layernorm",
    "attention.query_up": "self_attn.q_b_proj",
    "attention.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_norm": "self_attn.kv_a_layernorm",
    "attention.out": "self_attn.o_proj",
}
LATENTS = (
    *(
        Rule(f"attention.{each}_up.kernel", "self_attn.kv_b_proj.weight", "(N (h + v)) r -> r (N h + N v)", Part(number, 2))
        for number, each in enumerate(("key", "value"))
    ),
    *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch)),
)
ROUTER = (
    Rule("feed_forward.correction.bias", "mlp.gate.e_score_correction_bias"),
    *module_rules("feed_forward.router", "mlp.gate"),
    *(
        rule
        for each in ("gate", "up", "down")
        for rule in module_rules(f"feed_forward.shared.{each}", f"mlp.shared_experts.{each}_proj")
    ),
)
IN_FILES = expert_rules("mlp.experts", ("gate_proj", "up_proj", "down_proj"))
IN_MEMORY = (
    Rule("feed_forward.experts.gate.kernel", "mlp.experts.gate_up_proj", PACKED, Part(0, 2)),
    Rule("feed_forward.experts.up.kernel", "mlp.experts.gate_up_proj", PACKED, Part(1, 2)),
    Rule("feed_forward.experts.down.kernel", "mlp.experts.down_proj", EACH),
)

DEEPSEEK_V3 = replace(MIXTRAL, name="deepseek_v3", stacks=stacks_below("model.layers."), rules=(*ROUTER, *IN_FILES, *LATENTS))
"""Family for Llama's configuration with `kv_latent`, `head_dim`, `rotary_dim`, and as in the model `query_latent`, `value_dim`,
`n_experts`, `shared_d_ff`, `router="sigmoid"`, `router_correction=True`, `expert_groups` and `dense_layers`."""
DEEPSEEK_V2 = replace(DEEPSEEK_V3, name="deepseek_v2")
"""Family for DeepSeek-V3's configuration with `router="softmax"`, without a correction."""
GLM4_MOE_LITE = replace(DEEPSEEK_V3, name="glm4_moe_lite")
"""Family for DeepSeek-V3's configuration."""
YOUTU = replace(DEEPSEEK_V3, name="youtu", rules=LATENTS)
"""Family for DeepSeek-V3's configuration without experts."""
MEMORY = replace(DEEPSEEK_V3, name="deepseek_memory", rules=(*ROUTER, *IN_MEMORY, *LATENTS))
"""Family of these types' models in the memory of transformers 5."""

OWN_CODE = ("configuration_deepseek", "modeling_deepseek")
"""Files of code in DeepSeek's own folders, for the same model."""
HEADS: dict[str, Key] = {name: key for name, key in KEYS.items() if name not in ("num_key_value_heads", "head_dim")} | {
    "vocab_size": Field("vocab_size", 129280),
    "hidden_size": Field("d_model", 7168),
    "num_hidden_layers": Field("n_layers", 61),
    "num_attention_heads": Field("n_heads", 128),
    "num_key_value_heads": Field("key_heads", None),
    "max_position_embeddings": Field("context", 4096),
    "hidden_act": Field("activation", "silu", ACTIVATIONS),
    "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
    "kv_lora_rank": Field("kv_latent", 512),
    "q_lora_rank": Field("query_latent", 1536),
    "qk_nope_head_dim": Field("latent_units", 128),
    "qk_rope_head_dim": Field("rotary_dim", 64),
    "v_head_dim": Field("value_dim", 128),
    "rope_interleave": Field("rotary", True, {True: "interleaved", False: "half"}),
}
EXPERTS: dict[str, Key] = {
    "intermediate_size": Field("dense_d_ff", 18432),
    "moe_intermediate_size": Field("d_ff", 2048),
    "first_k_dense_replace": Field("dense_layers", 3),
    "n_routed_experts": Field("n_experts", 256),
    "n_shared_experts": Field("shared_experts", 1),
    "num_experts_per_tok": Field("experts_per_token", 8),
    "n_group": Field("expert_groups", 8),
    "topk_group": Field("groups_per_token", 4),
    "routed_scaling_factor": Field("router_scale", 2.5),
    "norm_topk_prob": Field("router_normalised", True),
    "topk_method": Only("noaux_tc", "experts would be chosen in another way"),
    "scoring_func": Only("sigmoid", "experts would have other scores"),
    "moe_layer_freq": Only(1, "some layers have no experts, and would have"),
    "auto_map": Field("code", None),
}
DERIVED = frozenset(["head_dim", "qk_head_dim"])
"""Keys that transformers computes of others, whatever they say."""
TRAINING = frozenset(["output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux", "ep_size", "pretraining_tp"])
PREDICTED = frozenset(["num_nextn_predict_layers", "num_mtp_layers"])
"""Numbers of modules that predict more tokens at once, behind the last layer."""


def check_code(found: dict[str, Any], own: Collection[str]) -> None:
    """Take `code` out of `found`; raise ConfigError if it is of other files than a type's own, for the same model."""
    files = {str(it).rpartition("--")[2].partition(".")[0] for it in (found.pop("code", None) or {}).values()}
    if files - {*own}:
        raise ConfigError(f"auto_map names code in {', '.join(sorted(files))}, which would not run; take it out if it need not")


def read_latents(found: dict[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
    """Set the width of heads, rotary positions, and the scale of scores, by which YaRN changes them."""
    if (heads := found.pop("key_heads")) not in (None, found["n_heads"]):
        raise ConfigError(f"num_key_value_heads = {heads} is not num_attention_heads = {found['n_heads']}; write that")
    width = found.pop("latent_units") + found["rotary_dim"]
    rope = found["rope_scaling"] or found["rope_parameters"] or {}
    return rotary(found | {"head_dim": width, "attention_scale": read_scale(rope, width)})


def read_scale(rope: Mapping[str, Any], width: int) -> float | None:
    """Return the scale of scores of heads of this width; None if a scaling of rotary positions does not change it."""
    over, factor = rope.get("mscale_all_dim"), rope.get("factor") or 1
    if not over or rope.get("rope_type", rope.get("type", "default")) == "default" or factor <= 1:
        return None
    amplitude = 0.1 * over * math.log(factor) + 1.0
    return width**-0.5 * amplitude * amplitude


def latent_keys(config: GPTConfig) -> dict[str, Any]:
    """Return the keys of heads and rotary positions, the inverse of `read_latents`."""
    keys, factor = rope_keys(config), config.rotary_factor
    if config.attention_scale is not None and factor is not None and factor > 1:
        amplitude = math.sqrt(config.attention_scale * config.head_width**0.5)
        over = {"mscale_all_dim": round((amplitude - 1) / (0.1 * math.log(factor)), 10)}
        keys |= {name: keys[name] | over for name in ("rope_parameters", "rope_scaling")}
    units = {"qk_nope_head_dim": config.head_width - (config.rotary_dim or 0), "v_head_dim": config.value_width}
    return keys | units | {"num_key_value_heads": config.n_heads}


def read_experts(found: dict[str, Any], names: Collection[str] = ()) -> dict[str, Any]:
    """Set the width of the shared expert and the number of dense layers; where all are dense, there are no experts."""
    check_code(found, OWN_CODE)
    found |= {"shared_d_ff": (found.pop("shared_experts") or 0) * found["d_ff"]}
    found |= {name: found[name] or 1 for name in ("expert_groups", "groups_per_token")}
    if found["expert_groups"] == 1:
        found |= {"groups_per_token": 1, "group_score": "best"}
    if found["dense_layers"] >= found["n_layers"]:
        return {name: it for name, it in found.items() if name not in _OF_EXPERTS} | {"d_ff": found["dense_d_ff"]}
    return found | ({} if found["dense_layers"] else {"dense_d_ff": None})


_OF_EXPERTS = {field.name for field in fields(ExpertsConfig)} | {field.name for field in fields(LayerKindsConfig)}


def expert_keys(config: GPTConfig) -> dict[str, Any]:
    """Return the keys of experts, the inverse of `read_experts`."""
    if not config.n_experts:
        return {"first_k_dense_replace": config.n_layers, "intermediate_size": config.d_ff} | _NO_EXPERTS
    wide = config.d_ff if config.dense_d_ff is None else config.dense_d_ff
    return {"n_shared_experts": config.shared_d_ff // config.d_ff, "intermediate_size": wide}


_NO_EXPERTS = {"n_routed_experts": 2, "n_shared_experts": 1, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
"""Numbers of experts of a model all of whose layers are dense, which are not read."""


def without_prediction(family: Family) -> Callable[[GPTConfig], Family]:
    """Return what gives the family without the tensors behind the last layer, which predict more tokens and no logits."""
    reason = "a module that predicts a second token, which transformers leaves out too"
    return lambda config: replace(family, ignored={**family.ignored, f"layers.{config.n_layers}.*": reason})


_FIXED = FIXED | {"feed_forward_bias": False}
SIGMOIDS = {"router": "sigmoid", "router_correction": True, "group_score": "best_two"}
"""The router of DeepSeek-V3."""
DEEPSEEK_V3_TYPE = replace(
    LLAMA_TYPE,
    name="deepseek_v3",
    family=DEEPSEEK_V3,
    variant=without_prediction(DEEPSEEK_V3),
    memory=MEMORY,
    keys=HEADS | EXPERTS,
    fixed={name: it for name, it in _FIXED.items() if name != "rotary"} | SIGMOIDS,
    model="DeepseekV3ForCausalLM",
    base="DeepseekV3Model",
    harmless=DERIVED | TRAINING | PREDICTED,
    derive=lambda found, names: read_experts(read_latents(found)),
    undo=lambda config: latent_keys(config) | expert_keys(config),
)


def _v2(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Take groups of experts as none, unless they limit the choice of experts."""
    if found.pop("choice") == "greedy":
        found |= {"expert_groups": 1, "groups_per_token": 1}
    return read_experts(read_latents(found))


DEEPSEEK_V2_TYPE = replace(
    DEEPSEEK_V3_TYPE,
    name="deepseek_v2",
    family=DEEPSEEK_V2,
    variant=None,
    keys={name: key for name, key in (HEADS | EXPERTS).items() if name != "rope_interleave"}
    | {
        "vocab_size": Field("vocab_size", 102400),
        "hidden_size": Field("d_model", 4096),
        "intermediate_size": Field("dense_d_ff", 11008),
        "moe_intermediate_size": Field("d_ff", 1407),
        "num_hidden_layers": Field("n_layers", 32),
        "num_attention_heads": Field("n_heads", 32),
        "max_position_embeddings": Field("context", 2048),
        "first_k_dense_replace": Field("dense_layers", 0),
        "n_routed_experts": Field("n_experts", 64),
        "n_shared_experts": Field("shared_experts", 2),
        "num_experts_per_tok": Field("experts_per_token", None),
        "n_group": Field("expert_groups", None),
        "topk_group": Field("groups_per_token", None),
        "topk_method": Field("choice", "greedy", {"greedy": "greedy", "group_limited_greedy": "groups"}),
        "routed_scaling_factor": Field("router_scale", 1.0),
        "norm_topk_prob": Only(False, "transformers does not divide the weights of experts by their sum, and others would"),
        "scoring_func": Only("softmax", "experts would have other scores"),
        "mlp_bias": Only(False, "experts have no biases beside those of a shared expert"),
    },
    fixed=_FIXED | {"rotary": "interleaved", "router": "softmax"},
    model="DeepseekV2ForCausalLM",
    base="DeepseekV2Model",
    harmless=DERIVED | TRAINING,
    derive=_v2,
    undo=lambda config: (
        latent_keys(config)
        | expert_keys(config)
        | {"topk_method": "group_limited_greedy" if config.expert_groups > 1 else "greedy"}
    ),
)
