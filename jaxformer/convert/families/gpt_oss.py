"""gpt-oss in transformers' format (`GptOssForCausalLM`): attention sinks, windows in every other layer, and experts whose gate
and up projections lie in turn."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.convert.axes import Part
from jaxformer.convert.decoder_keys import layer_types, read_layers, rope_keys
from jaxformer.convert.families.llama import FIXED, KEYS, LLAMA, LLAMA_TYPE, NAMES, PROJECTIONS, rotary, sizes_of_heads
from jaxformer.convert.family import Rule, module_rules
from jaxformer.convert.model_type import Field, Only

_NAMES = {name: torch for name, torch in NAMES.items() if not name.startswith("feed_forward.")}
_KERNEL, _BIAS = "e d (f (1 + 1)) -> e d (f + f)", "e (f (1 + 1)) -> e (f + f)"

GPT_OSS = replace(
    LLAMA,
    name="gpt_oss",
    rules=(
        *PROJECTIONS,
        Rule("attention.sinks.bias", "self_attn.sinks"),
        Rule("feed_forward.experts.gate.kernel", "mlp.experts.gate_up_proj", _KERNEL, Part(0, 2)),
        Rule("feed_forward.experts.up.kernel", "mlp.experts.gate_up_proj", _KERNEL, Part(1, 2)),
        Rule("feed_forward.experts.gate.bias", "mlp.experts.gate_up_proj_bias", _BIAS, Part(0, 2)),
        Rule("feed_forward.experts.up.bias", "mlp.experts.gate_up_proj_bias", _BIAS, Part(1, 2)),
        Rule("feed_forward.experts.down.kernel", "mlp.experts.down_proj"),
        Rule("feed_forward.experts.down.bias", "mlp.experts.down_proj_bias"),
        *module_rules("feed_forward.router", "mlp.router"),
        *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch)),
    ),
)
"""Family for Llama's configuration with biases, `sinks=True`, `n_experts`, `router="top_k_softmax"`, `router_bias=True`,
`activation="quick_gelu"`, `gate_limit`, `window` and `layer_pattern`."""
_YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
_YARN |= {"original_max_position_embeddings": 4096}
"""Rotary positions where config.json has none."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set rotary positions, and the layers with a sliding window: without `layer_types`, every other one from the first on."""
    if found["rope_parameters"] is None and found["rope_scaling"] is None:
        found["rope_scaling"] = _YARN
    every = range(found["n_layers"])
    types = found.pop("layer_types") or ["full_attention" if i % 2 else "sliding_attention" for i in every]
    return rotary(found | read_layers(types, found))


GPT_OSS_TYPE = replace(
    LLAMA_TYPE,
    name="gpt_oss",
    family=GPT_OSS,
    keys=KEYS
    | {
        "vocab_size": Field("vocab_size", 201088),
        "max_position_embeddings": Field("context", 131072),
        "hidden_size": Field("d_model", 2880),
        "intermediate_size": Field("d_ff", 2880),
        "num_hidden_layers": Field("n_layers", 36),
        "num_attention_heads": Field("n_heads", 64),
        "num_key_value_heads": Field("n_kv_heads", 8),
        "head_dim": Field("head_dim", 64),
        "rms_norm_eps": Field("norm_epsilon", 1e-5),
        "rope_theta": Field("rope_theta", 150000.0),
        "sliding_window": Field("window", 128),
        "layer_types": Field("layer_types", None),
        "attention_bias": Field("qkv_bias", True, also=("output_bias",)),
        "num_local_experts": Field("n_experts", 128),
        "num_experts_per_tok": Field("experts_per_token", 4),
        "swiglu_limit": Field("gate_limit", 7.0),
        "swiglu_alpha": Only(1.702, "the gate would have another slope"),
        "hidden_act": Only("silu", "experts would have another activation"),
    },
    fixed=FIXED | {"sinks": True, "router": "top_k_softmax", "router_bias": True, "activation": "quick_gelu"},
    model="GptOssForCausalLM",
    base="GptOssModel",
    harmless=frozenset(["output_router_logits", "router_aux_loss_coef", "experts_per_token", "initial_context_length"]),
    derive=_derive,
    undo=lambda config: sizes_of_heads(config) | rope_keys(config) | {"layer_types": layer_types(config)},
)
