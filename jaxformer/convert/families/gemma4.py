"""Text model of Gemma 4 in transformers' format: layers of two shapes, embeddings of every layer, and last layers that share
the keys and values of earlier ones."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.axes import Part
from jaxformer.convert.decoder_keys import PART, layer_types, read_by_layer, read_layers, rope_by_layer
from jaxformer.convert.families.gemma import GEMMA2, GEMMA2_TYPE
from jaxformer.convert.families.llama import FIXED
from jaxformer.convert.families.mixtures import EACH, PACKED
from jaxformer.convert.family import Family, Rule, module_rules, stacks_below
from jaxformer.convert.model_type import ACTIVATIONS, Field, Key
from jaxformer.errors import ConfigError

_NAMES = {
    "layer_embed.token": "model.embed_tokens_per_layer",
    "layer_embed.projection": "model.per_layer_model_projection",
    "layer_embed.norm": "model.per_layer_projection_norm",
    "feed_forward.router": "router.proj",
    "feed_forward.norms.experts_norm": "pre_feedforward_layernorm_2",
    "feed_forward.norms.experts_output_norm": "post_feedforward_layernorm_2",
    "feed_forward.norms.shared_norm": "pre_feedforward_layernorm",
    "feed_forward.norms.shared_output_norm": "post_feedforward_layernorm_1",
    **{f"feed_forward.shared.{each}": f"mlp.{each}_proj" for each in ("gate", "up", "down")},
    "layer_input.gate": "per_layer_input_gate",
    "layer_input.up": "per_layer_projection",
    "layer_input.norm": "post_per_layer_input_norm",
}
GEMMA4 = replace(
    GEMMA2,
    name="gemma4_text",
    stacks=stacks_below("model.layers."),
    rules=(
        Rule("output_scale.scale", "layer_scalar"),
        Rule("feed_forward.expert_scale.scale", "router.per_expert_scale"),
        Rule("feed_forward.norms.router_norm.scale", "router.scale"),
        Rule("feed_forward.experts.gate.kernel", "experts.gate_up_proj", PACKED, Part(0, 2)),
        Rule("feed_forward.experts.up.kernel", "experts.gate_up_proj", PACKED, Part(1, 2)),
        Rule("feed_forward.experts.down.kernel", "experts.down_proj", EACH),
        *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch)),
        *GEMMA2.rules,
    ),
)
"""Family for Gemma 2's configuration without `norm_unit_offset`, and with `qk_norm=True, value_norm=True, attention_scale=1.0,
output_scale=True`, and as in the model `full_head_dim`, `full_kv_heads`, `full_value_projection`, `layer_embedding`,
`shared_kv_layers` and `shared_kv_d_ff`; with experts, `expert_norms`, `expert_scale` and `router_normalised`."""


def without_shared(config: GPTConfig) -> Family:
    """Return the family without the keys and values of layers that share them, which older files have and no model reads."""
    first, reason = config.n_layers - config.shared_kv_layers, "keys and values of a layer that reads those of an earlier one"
    unread = (
        f"layers.{i}.self_attn.{name}.*" for i in range(first, config.n_layers) for name in ("k_proj", "v_proj", "k_norm")
    )
    return replace(GEMMA4, ignored={**GEMMA4.ignored, **dict.fromkeys(unread, reason)})


FULL, NEAR = "full_attention", "sliding_attention"
ROPES = {NEAR: {"rope_type": "default", "rope_theta": 1e4}, FULL: {"rope_type": "proportional", PART: 0.25, "rope_theta": 1e6}}
"""Rotary positions where config.json has none."""
WIDTH, HEADS = "head_dim", "num_key_value_heads"
PERIOD = 6
"""Number of layers of which one sees all tokens, where config.json has no `layer_types`."""


def _read(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the kinds of layers, their sizes and rotary positions."""
    found.pop("bidirectional")
    types, n_layers = found.pop("layer_types"), found["n_layers"]
    types = list(types or [FULL if i % PERIOD == 0 else NEAR for i in range(1, n_layers + 1)])
    types[-1] = FULL  # as transformers has it, whatever the file says
    layers, vocab, wide = read_layers(types, found), found.pop("layer_vocab"), found.pop("double_wide")
    found["layer_embedding"] = found["layer_embedding"] or 0
    if found["layer_embedding"] and vocab != found["vocab_size"]:
        raise ConfigError(
            f"vocab_size_per_layer_input = {vocab} differs from vocab_size = {found['vocab_size']}; here they are one"
        )
    if wide and found["shared_kv_layers"]:
        found["shared_kv_d_ff"] = 2 * found["d_ff"]
    full, rope = _full_layers(found, types), found.pop("rope_parameters") or ROPES
    if missing := [kind for kind in (FULL, NEAR) if kind in types and rope.get(kind) is None]:
        raise ConfigError(f"rope_parameters has no {missing[0]}, which layer_types has; give its rope_type and rope_theta")
    width = full.get("full_head_dim", full.get("head_dim", found["head_dim"]))
    found |= layers | full | _rotary(rope, found | layers, width)
    return found | _experts(found)


def _experts(found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of experts, beside which the feed-forward layer is a shared expert; {} if there are none."""
    mixture, n, chosen, width = (found.pop(name) for name in ("mixture", "n_experts", "experts_per_token", "expert_d_ff"))
    if not mixture:
        return {}
    if None in (n, chosen, width):
        raise ConfigError("enable_moe_block = True needs num_experts, top_k_experts and moe_intermediate_size")
    sizes = {"n_experts": n, "experts_per_token": chosen, "shared_d_ff": found["d_ff"], "d_ff": width}
    return sizes | {"router_normalised": True, "expert_norms": True, "expert_scale": True}


def _full_layers(found: dict[str, Any], types: list[str]) -> dict[str, Any]:
    """Return the sizes of layers that see all tokens; ConfigError for any other layer with sizes of its own."""
    own, width, heads, same = (found.pop(name) for name in ("per_layer", "full_width", "full_heads", "keys_are_values"))
    if own is None:
        sizes = {WIDTH: width} | ({HEADS: heads} if same and heads is not None else {})
        own = {i: sizes for i, kind in enumerate(types) if kind == FULL}
    if not (isinstance(own, Mapping) and all(str(i).isdigit() and isinstance(it, Mapping) for i, it in own.items())):
        raise ConfigError(f"per_layer_config = {own!r:.80} is no table of layers; give each layer's number and its sizes")
    if missing := [i for i in own if int(i) >= len(types)]:
        raise ConfigError(f"per_layer_config has layer {missing[0]}, and num_hidden_layers = {len(types)}; take it out")
    usual = {WIDTH: found["head_dim"], HEADS: found["n_kv_heads"]}
    others = {int(i): {key: it for key, it in sizes.items() if usual.get(key, object()) != it} for i, sizes in own.items()}
    if unknown := sorted({key for sizes in others.values() for key in sizes} - usual.keys()):
        raise ConfigError(f"per_layer_config has {', '.join(unknown)}, which is not supported ({WIDTH} and {HEADS} are)")
    found_of = {kind: [others.get(i, {}) for i, it in enumerate(types) if it == kind] for kind in (FULL, NEAR)}
    sizes = found_of[FULL][0]
    if any(it != sizes for it in found_of[FULL]) or any(found_of[NEAR]):
        raise ConfigError(
            f"per_layer_config has layers of other sizes than those of their kind; it may give all layers of {FULL} the same "
            f"{WIDTH} and {HEADS}"
        )
    start = "full_" if found_of[NEAR] else ""
    given = {f"{start}head_dim": sizes.get(WIDTH)} | {"full_kv_heads" if start else "n_kv_heads": sizes.get(HEADS)}
    return {key: it for key, it in given.items() if it is not None} | {f"{start}value_projection": not same}


def _rotary(parameters: Mapping[str, Any], found: dict[str, Any], width: int) -> dict[str, Any]:
    """Return the rotary fields; of a head this wide, the first pairs alone turn in layers that see all tokens."""
    for kind in (FULL, NEAR):
        if not isinstance(parameters.get(kind) or {}, Mapping):
            raise ConfigError(f"rope_parameters has {kind} = {parameters[kind]!r:.80}; give its rope_type and rope_theta")
    ropes = {kind: {"rope_theta": 1e4} | dict(parameters.get(kind) or {}) for kind in (FULL, NEAR)}
    parts = {kind: _part(kind, rope) for kind, rope in ropes.items()}
    turned = ropes[FULL].get("rope_type") == "proportional"
    factor = ropes[FULL].pop("factor", 1.0) if turned else 1.0
    ropes[FULL] |= {"rope_type": "default"} if turned else {}
    fields = read_by_layer(parameters, ropes[FULL], ropes[NEAR], found)
    if turned:
        pairs = int(parts[FULL] * width // 2)
        fields |= {"rotary_scaling": "proportional", "rotary_factor": factor, "rotary_pairs": pairs}
        if found["window"] is not None:
            fields["rotary_window_base"] = ropes[NEAR]["rope_theta"]
    return fields


def _part(kind: str, rope: dict[str, Any]) -> float:
    """Take the rotated part of a head out of a kind's rotary positions; ConfigError if it is read, and cuts a head."""
    part, way = rope.pop(PART, 1.0), rope.get("rope_type", "default")
    if part != 1 and way not in ("default", "proportional"):
        raise ConfigError(f"{PART} = {part} of {kind} is not supported (1 is) with rope_type = {way!r}")
    return part


def _undo(config: GPTConfig) -> dict[str, Any]:
    """Return the keys whose values `_read` changed."""
    types = layer_types(config)
    sizes = {WIDTH: config.full_head_dim, HEADS: config.full_kv_heads}
    own = {key: it for key, it in sizes.items() if it is not None}
    full = [i for i, kind in enumerate(types) if kind == FULL and own]
    return {
        WIDTH: config.head_width,
        HEADS: config.kv_heads,
        "per_layer_config": {str(i).zfill(len(str(full[-1]))): own for i in full},
        "layer_types": types,
        "rope_parameters": rope_by_layer(config),
        "attention_k_eq_v": not (config.full_value_projection and config.value_projection),
        "vocab_size_per_layer_input": config.vocab_size,
        "use_double_wide_mlp": config.shared_kv_d_ff == 2 * config.d_ff,
        "enable_moe_block": config.n_experts > 0,
        "intermediate_size": config.shared_d_ff if config.n_experts else config.d_ff,
        "num_experts": config.n_experts or None,
        "top_k_experts": config.experts_per_token if config.n_experts else None,
        "moe_intermediate_size": config.d_ff if config.n_experts else None,
    }


KEYS: dict[str, Key] = {
    "vocab_size": Field("vocab_size", 262144),
    "max_position_embeddings": Field("context", 131072),
    "hidden_size": Field("d_model", 2304),
    "intermediate_size": Field("d_ff", 9216),
    "num_hidden_layers": Field("n_layers", 30),
    "num_attention_heads": Field("n_heads", 8),
    HEADS: Field("n_kv_heads", 4),
    WIDTH: Field("head_dim", 256),
    "hidden_activation": Field("activation", "gelu_pytorch_tanh", ACTIVATIONS),
    "rms_norm_eps": Field("norm_epsilon", 1e-6),
    "pad_token_id": Field("padding_idx", 0),
    "tie_word_embeddings": Field("tied", True),
    "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
    "attention_dropout": Field("attention_dropout", 0.0),
    "sliding_window": Field("window", 512),
    "layer_types": Field("layer_types", None),
    "rope_parameters": Field("rope_parameters", None),
    "final_logit_softcapping": Field("logits_softcap", None),
    "use_bidirectional_attention": Field("bidirectional", None, {None: "none", "vision": "none"}),
    "vocab_size_per_layer_input": Field("layer_vocab", 262144),
    "hidden_size_per_layer_input": Field("layer_embedding", 256),
    "num_kv_shared_layers": Field("shared_kv_layers", 0),
    "use_double_wide_mlp": Field("double_wide", False),
    "attention_k_eq_v": Field("keys_are_values", False),
    "per_layer_config": Field("per_layer", None),
    "global_head_dim": Field("full_width", 512),
    "num_global_key_value_heads": Field("full_heads", None),
    "enable_moe_block": Field("mixture", False),
    "num_experts": Field("n_experts", None),
    "top_k_experts": Field("experts_per_token", None),
    "moe_intermediate_size": Field("expert_d_ff", None),
}
"""`use_bidirectional_attention = "vision"` is of images, and no text has any."""
GEMMA4_TYPE = replace(
    GEMMA2_TYPE,
    name="gemma4_text",
    family=GEMMA4,
    variant=without_shared,
    keys=KEYS,
    fixed=FIXED
    | {"norm_position": "sandwich", "embedding_scale": True, "feed_forward_bias": False, "qk_norm": True, "value_norm": True}
    | {"attention_scale": 1.0, "output_scale": True},
    model="Gemma4ForCausalLM",
    base="Gemma4TextModel",
    harmless=frozenset(),
    derive=_read,
    undo=_undo,
)
