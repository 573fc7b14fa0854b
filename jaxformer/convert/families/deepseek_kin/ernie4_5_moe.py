"""ERNIE 4.5 with experts in transformers' format: ERNIE 4.5's attention, and experts chosen by corrected probabilities."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import rope_keys
from jaxformer.convert.families.deepseek_kin.deepseek import IN_FILES, IN_MEMORY, ROUTER, expert_keys
from jaxformer.convert.families.deepseek_kin.deepseek_like import GLM4_MOE, read_mixed
from jaxformer.convert.families.llama import FIXED, LLAMA, LLAMA_TYPE, NO_BIAS, rotary
from jaxformer.convert.families.llama_like import ERNIE_TYPE
from jaxformer.convert.family import Rule
from jaxformer.convert.model_type import Field, Only
from jaxformer.errors import ConfigError

_PREDICTED = {"mtp_*": "a module that predicts a second token, which transformers leaves out too"}


def _correction(below: str) -> Rule:
    return Rule("feed_forward.correction.bias", f"{below}.moe_statics.e_score_correction_bias", "1 e -> e")


ERNIE4_5_MOE = replace(
    GLM4_MOE,
    name="ernie4_5_moe",
    rules=(_correction("mlp"), *ROUTER, *IN_FILES, *LLAMA.rules),
    ignored={**GLM4_MOE.ignored, **_PREDICTED},
)
"""Family for ERNIE 4.5's configuration with `n_experts`, `experts_per_token`, `router_normalised=True`,
`router_correction=True`, `shared_d_ff` and `dense_layers`."""
ERNIE_MOE_MEMORY = replace(
    ERNIE4_5_MOE, name="ernie_moe_memory", rules=(_correction("mlp.gate"), *ROUTER, *IN_MEMORY, *LLAMA.rules)
)
"""Family of the same models in the memory of transformers 5."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the layers with experts: all from one on, up to the last."""
    last = found.pop("moe_layer_end_index")
    if last not in (None, -1, found["n_layers"] - 1):
        raise ConfigError(f"moe_layer_end_index = {last} is not supported (-1 is): the last layers have no experts, and would")
    return read_mixed(rotary(found | {"expert_groups": 1, "groups_per_token": 1}))


def _undo(config: GPTConfig) -> dict[str, Any]:
    keys = expert_keys(config)
    keys |= {"moe_num_shared_experts": keys.pop("n_shared_experts"), "moe_layer_end_index": config.n_layers - 1}
    return rope_keys(config) | keys | {"num_key_value_heads": config.kv_heads}


ERNIE4_5_MOE_TYPE = replace(
    LLAMA_TYPE,
    name="ernie4_5_moe",
    family=ERNIE4_5_MOE,
    memory=ERNIE_MOE_MEMORY,
    keys={name: key for name, key in ERNIE_TYPE.keys.items() if name != "head_dim"}
    | {
        "hidden_size": Field("d_model", 2560),
        "intermediate_size": Field("dense_d_ff", 12288),
        "num_hidden_layers": Field("n_layers", 28),
        "num_attention_heads": Field("n_heads", 20),
        "num_key_value_heads": Field("n_kv_heads", 4),
        "use_bias": Only(False, "experts have no biases beside those of a shared expert"),
        "moe_intermediate_size": Field("d_ff", 1536),
        "moe_k": Field("experts_per_token", 6),
        "moe_num_experts": Field("n_experts", 64),
        "moe_num_shared_experts": Field("shared_experts", 2),
        "moe_layer_start_index": Field("dense_layers", 1),
        "moe_layer_end_index": Field("moe_layer_end_index", None),
        "moe_layer_interval": Only(1, "some layers have no experts, and would have"),
        "moe_norm_min": Only(1e-12, "the weights of experts would be divided by their sum alone"),
    },
    fixed=FIXED | NO_BIAS | {"rotary": "interleaved", "router_normalised": True, "router_correction": True},
    model="Ernie4_5_MoeForCausalLM",
    base="Ernie4_5_MoeModel",
    harmless=ERNIE_TYPE.harmless
    | {"output_router_logits", "router_aux_loss_coef", "num_nextn_predict_layers"}
    | {"moe_capacity", "moe_gate", "moe_use_aux_free"},  # transformers does not read them
    derive=_derive,
    undo=_undo,
)
