"""nanochat: norms without gains, after the embedding and around rotated queries and keys too; its own names, and those of
transformers' format (`NanoChatForCausalLM`)."""

from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.decoder_keys import ROPE, rope_keys
from jaxformer.convert.families.llama import LLAMA, PROJECTIONS, rotary
from jaxformer.convert.family import Family, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType

_NAMES = {
    "embed.token": "transformer.wte",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
    "head": "lm_head",
}
_NAMES_HF = {
    "embed.token": "model.embed_tokens",
    "feed_forward.up": "mlp.fc1",
    "feed_forward.down": "mlp.fc2",
    "head": "lm_head",
}

NANOCHAT = Family(
    name="nanochat",
    stacks={"stack.blocks.": "transformer.h.{layer}."},
    rules=(
        *projection_rules("attention", "attn", ("c_q", "c_k", "c_v"), "c_proj"),
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
    ignored={"cos": "cosines of rotary positions, which the model computes", "sin": "their sines"},
)
"""Family for nanochat of 2025, before its embeddings of values: `GPTConfig(norm="rms", norm_affine=False, norm_epsilon=...,
positions="none", embedding_norm=True, rotary="half", rotary_reversed=True, qk_norm=True, qk_norm_affine=False,
qk_norm_after_rotary=True, activation="relu_squared", logits_softcap=15.0, qkv_bias=False, output_bias=False,
feed_forward_bias=False)`, with its `n_kv_heads`. torch's norms have the smallest step of their type as epsilon: 2^-23 in
float32, 2^-7 in bfloat16."""
NANOCHAT_HF = Family(
    name="nanochat_hf",
    stacks=LLAMA.stacks,
    rules=(*PROJECTIONS, *(rule for pair in _NAMES_HF.items() for rule in module_rules(*pair))),
    tied=LLAMA.tied,
    ignored=LLAMA.ignored,
)
"""Family for the same configuration, by the names of transformers."""


def _undo(config: GPTConfig) -> dict[str, Any]:
    return rope_keys(config) | {"num_key_value_heads": config.kv_heads}


NANOCHAT_TYPE = ModelType(
    name="nanochat",
    config=GPTConfig,
    family=NANOCHAT_HF,
    keys={
        "vocab_size": Field("vocab_size", 50304),
        "max_position_embeddings": Field("context", 2048),
        "hidden_size": Field("d_model", 768),
        "intermediate_size": Field("d_ff", 8192),
        "num_hidden_layers": Field("n_layers", 12),
        "num_attention_heads": Field("n_heads", 6),
        "num_key_value_heads": Field("n_kv_heads", None),
        "hidden_act": Field("activation", "relu2", ACTIVATIONS),
        "rms_norm_eps": Field("norm_epsilon", 1e-6),
        "final_logit_softcapping": Field("logits_softcap", 15.0),
        "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
        "attention_dropout": Field("attention_dropout", 0.0),
        "pad_token_id": Field("padding_idx", 1),
        "tie_word_embeddings": Field("tied", False),
        **ROPE,
    },
    fixed={
        "norm": "rms",
        "norm_affine": False,
        "embedding_norm": True,
        "positions": "none",
        "rotary": "half",
        "rotary_reversed": True,
        "qk_norm": True,
        "qk_norm_affine": False,
        "qk_norm_after_rotary": True,
        "feed_forward_bias": False,
    },
    model="NanoChatForCausalLM",
    base="NanoChatModel",
    prefix="model.",
    derive=rotary,
    undo=_undo,
)
