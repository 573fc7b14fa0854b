"""Persimmon in transformers' format (`PersimmonForCausalLM`): projections packed head by head, and LayerNorms of queries and
keys."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.convert.decoder_keys import PART, rope_keys
from jaxformer.convert.families.llama import LLAMA, LLAMA_TYPE, rotary
from jaxformer.convert.families.llama_like import keys_of
from jaxformer.convert.family import module_rules, packed_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field

_NAMES = {
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
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
)
"""Family for `GPTConfig(positions="none", rotary="half", rotary_dim=..., activation="relu_squared", qk_norm=True,
qk_norm_kind="layer", qk_norm_bias=True)`; projections are fused or separate."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the kind of norm of queries and keys, if they have one."""
    return rotary(found | ({"qk_norm_kind": "layer", "qk_norm_bias": True} if found["qk_norm"] else {}))


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
    derive=_derive,
    undo=lambda config: rope_keys(config, part=True),
)
