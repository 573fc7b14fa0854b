"""Mixtures of experts in transformers' format with Llama's names: Mixtral, Qwen 2 MoE, Qwen 3 MoE and OLMoE.

Files have a tensor for each expert. The models of transformers 5 hold all experts of a layer in one tensor, with gate and up
projections packed: family `moe_memory`.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.axes import Join, Part
from jaxformer.convert.decoder_keys import read_layers, rope_keys
from jaxformer.convert.families.llama import (
    FIXED,
    KEYS,
    LLAMA,
    LLAMA_TYPE,
    NAMES,
    NO_BIAS,
    PROJECTIONS,
    QWEN,
    rotary,
    sizes_of_heads,
    undo_windows,
)
from jaxformer.convert.family import Family, Rule, module_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, Key, Only
from jaxformer.errors import ConfigError

_NAMES = {name: torch for name, torch in NAMES.items() if not name.startswith("feed_forward.")} | {
    "feed_forward.router": "mlp.gate",
    "feed_forward.shared.gate": "mlp.shared_expert.gate_proj",
    "feed_forward.shared.up": "mlp.shared_expert.up_proj",
    "feed_forward.shared.down": "mlp.shared_expert.down_proj",
    "feed_forward.shared_gate": "mlp.shared_expert_gate",
}
EACH, PACKED = "e o i -> e i o", "e (f + f) d -> e d (f + f)"
"""Layouts of the experts' weights: of one projection, and of gate and up."""


def _family(name: str, experts: tuple[Rule, ...], names: dict[str, str] = _NAMES) -> Family:
    modules = (rule for jax, torch in names.items() for rule in module_rules(jax, torch))
    return replace(LLAMA, name=name, rules=(*PROJECTIONS, *experts, *modules))


def expert_rules(below: str, names: tuple[str, str, str]) -> tuple[Rule, ...]:
    """Return rules for a tensor per expert, by torch's names of gate, up and down."""
    return tuple(
        Rule(f"feed_forward.experts.{own}.kernel", f"{below}.{{part}}.{name}.weight", EACH, join=Join("E", stacked=True))
        for own, name in zip(("gate", "up", "down"), names, strict=True)
    )


MIXTRAL = _family(
    "mixtral",
    expert_rules("block_sparse_moe.experts", ("w1", "w3", "w2")),
    _NAMES | {"feed_forward.router": "block_sparse_moe.gate"},
)
"""Family for Llama's configuration with `n_experts`, `experts_per_token` and `router_normalised=True`."""
QWEN2_MOE = _family("qwen2_moe", expert_rules("mlp.experts", ("gate_proj", "up_proj", "down_proj")))
"""Family for Qwen 2's configuration with `n_experts`, `experts_per_token`, `shared_d_ff` and `shared_gate=True`."""
QWEN3_MOE = replace(QWEN2_MOE, name="qwen3_moe")
"""Family for Qwen 3's configuration with `n_experts` and `experts_per_token`."""
OLMOE = replace(QWEN2_MOE, name="olmoe")
"""Family for Llama's configuration with `n_experts`, `experts_per_token`, `qk_norm=True` and `qk_norm_over="all"`."""
MEMORY = _family(
    "moe_memory",
    (
        Rule("feed_forward.experts.gate.kernel", "mlp.experts.gate_up_proj", PACKED, Part(0, 2)),
        Rule("feed_forward.experts.up.kernel", "mlp.experts.gate_up_proj", PACKED, Part(1, 2)),
        Rule("feed_forward.experts.down.kernel", "mlp.experts.down_proj", EACH),
    ),
)
"""Family of the four types' models in the memory of transformers 5."""

_KEYS: dict[str, Key] = KEYS | {
    "hidden_act": Field("activation", "silu", ACTIVATIONS),
    "num_experts_per_tok": Field("experts_per_token", 2),
}
_SPARSE: dict[str, Key] = {
    "moe_intermediate_size": Field("d_ff", 1408),
    "norm_topk_prob": Field("router_normalised", False),
    "decoder_sparse_step": Only(1, "some layers have no experts, and would have"),
    "mlp_only_layers": Only([], "some layers have no experts, and would have"),
}
_TRAINING = frozenset(["output_router_logits", "router_aux_loss_coef"])
_DENSE = _TRAINING | {"intermediate_size", "max_window_layers"}
"""Keys that change no output: losses in training, and the width of layers without experts."""


def _undo(config: GPTConfig) -> dict[str, Any]:
    return sizes_of_heads(config) | rope_keys(config)


MIXTRAL_TYPE = replace(
    LLAMA_TYPE,
    name="mixtral",
    family=MIXTRAL,
    memory=MEMORY,
    keys=_KEYS
    | {
        "intermediate_size": Field("d_ff", 14336),
        "num_key_value_heads": Field("n_kv_heads", 8),
        "max_position_embeddings": Field("context", 131072),
        "rms_norm_eps": Field("norm_epsilon", 1e-5),
        "rope_theta": Field("rope_theta", 1e6),
        "sliding_window": Field("window", None),
        "num_local_experts": Field("n_experts", 8),
        "router_jitter_noise": Only(0.0, "training would have no noise"),
    },
    fixed=FIXED | NO_BIAS | {"router_normalised": True},
    model="MixtralForCausalLM",
    base="MixtralModel",
    harmless=_TRAINING,
)


def _in_turn(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the layers with a sliding window: without `layer_types`, every other one of those before `max_window_layers`."""
    used, last, types = (found.pop(name) for name in ("use_sliding_window", "max_window_layers", "layer_types"))
    found["window"] = found["window"] if used else None
    if types is None:
        near = [bool(used) and i < last and i % 2 == 0 for i in range(found["n_layers"])]
        types = ["sliding_attention" if it else "full_attention" for it in near]
    return rotary(found | read_layers(types, found))


QWEN2_MOE_TYPE = replace(
    MIXTRAL_TYPE,
    name="qwen2_moe",
    family=QWEN2_MOE,
    keys={name: key for name, key in QWEN.items() if name != "intermediate_size"}
    | _SPARSE
    | {
        "hidden_size": Field("d_model", 2048),
        "num_hidden_layers": Field("n_layers", 24),
        "num_attention_heads": Field("n_heads", 16),
        "num_key_value_heads": Field("n_kv_heads", 16),
        "qkv_bias": Field("qkv_bias", True),
        "sliding_window": Field("window", None),
        "shared_expert_intermediate_size": Field("shared_d_ff", 5632),
        "num_experts": Field("n_experts", 60),
        "num_experts_per_tok": Field("experts_per_token", 4),
    },
    fixed=FIXED | {"output_bias": False, "feed_forward_bias": False, "shared_gate": True},
    model="Qwen2MoeForCausalLM",
    base="Qwen2MoeModel",
    harmless=_DENSE,
    derive=_in_turn,
    undo=undo_windows,
)


def _qwen3(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the number of experts, which has two keys, and the window of all layers."""
    given = {found.pop(name) for name in ("num_experts", "num_local_experts")} - {None}
    if len(given) > 1:
        raise ConfigError("num_experts and num_local_experts differ; take the wrong one out")
    window = found["window"] if found.pop("use_sliding_window") else None
    return rotary(found | {"window": window, "n_experts": next(iter(given), 128)})


QWEN3_MOE_TYPE = replace(
    QWEN2_MOE_TYPE,
    name="qwen3_moe",
    family=QWEN3_MOE,
    keys={name: key for name, key in QWEN.items() if name not in ("intermediate_size", "max_window_layers", "layer_types")}
    | _SPARSE
    | {
        "hidden_size": Field("d_model", 2048),
        "num_hidden_layers": Field("n_layers", 24),
        "num_key_value_heads": Field("n_kv_heads", 4),
        "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
        "moe_intermediate_size": Field("d_ff", 768),
        "num_experts": Field("num_experts", None),
        "num_local_experts": Field("num_local_experts", None),
        "num_experts_per_tok": Field("experts_per_token", 8),
    },
    fixed=FIXED | {"feed_forward_bias": False, "qk_norm": True},
    model="Qwen3MoeForCausalLM",
    base="Qwen3MoeModel",
    derive=_qwen3,
    undo=lambda config: (
        _undo(config)
        | {"num_experts": config.n_experts, "num_local_experts": config.n_experts}
        | {"use_sliding_window": config.window is not None}
    ),
)
OLMOE_TYPE = replace(
    MIXTRAL_TYPE,
    name="olmoe",
    family=OLMOE,
    keys={name: key for name, key in _KEYS.items() if name != "head_dim"}
    | {
        "vocab_size": Field("vocab_size", 50304),
        "max_position_embeddings": Field("context", 4096),
        "hidden_size": Field("d_model", 2048),
        "intermediate_size": Field("d_ff", 2048),
        "num_hidden_layers": Field("n_layers", 16),
        "num_attention_heads": Field("n_heads", 16),
        "rms_norm_eps": Field("norm_epsilon", 1e-5),
        "pad_token_id": Field("padding_idx", 1),
        "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
        "clip_qkv": Field("clip_qkv", None),
        "num_experts": Field("n_experts", 64),
        "num_experts_per_tok": Field("experts_per_token", 8),
        "norm_topk_prob": Field("router_normalised", False),
    },
    fixed=FIXED | {"feed_forward_bias": False, "qk_norm": True, "qk_norm_over": "all"},
    model="OlmoeForCausalLM",
    base="OlmoeModel",
    undo=lambda config: rope_keys(config) | {"num_key_value_heads": config.kv_heads},
)
