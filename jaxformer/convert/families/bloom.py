"""BLOOM in transformers' format: ALiBi, a norm of the embeddings, and queries, keys and values packed head by head."""

from collections.abc import Collection
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.family import Family, module_rules, packed_rules
from jaxformer.convert.model_type import Field, ModelType, Only

_NAMES = {
    "embed.token": "transformer.word_embeddings",
    "embed.norm": "transformer.word_embeddings_layernorm",
    "attention_norm": "input_layernorm",
    "attention.out": "self_attention.dense",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.up": "mlp.dense_h_to_4h",
    "feed_forward.down": "mlp.dense_4h_to_h",
    "norm": "transformer.ln_f",
    "head": "lm_head",
}
ENDLESS = 16384
"""Context of models with ALiBi alone, which have no longest text."""

BLOOM = Family(
    name="bloom",
    stacks={"stack.blocks.": "transformer.h.{layer}."},
    rules=(
        *packed_rules("attention", "self_attention.query_key_value"),
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
    tied={"lm_head.weight": "transformer.word_embeddings.weight"},
)
"""Family for `GPTConfig(positions="none", relative_bias="alibi", embedding_norm=True, activation="gelu_bloom", tied=True)`;
projections are fused or separate."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the width of the feed-forward layer, 4 times the model's."""
    return found | {"d_ff": 4 * found["d_model"]}


BLOOM_TYPE = ModelType(
    name="bloom",
    config=GPTConfig,
    family=BLOOM,
    keys={
        "vocab_size": Field("vocab_size", 250880),
        "hidden_size": Field("d_model", 64),
        "n_layer": Field("n_layers", 2),
        "n_head": Field("n_heads", 8),
        "layer_norm_epsilon": Field("norm_epsilon", 1e-5),
        "hidden_dropout": Field("residual_dropout", 0.0),
        "attention_dropout": Field("attention_dropout", 0.0),
        "tie_word_embeddings": Field("tied", True),
        "n_inner": Only(None, "the feed-forward layer would have another width"),
        "apply_residual_connection_post_layernorm": Only(False, "sums would be made with the normed states"),
    },
    fixed={
        "context": ENDLESS,
        "positions": "none",
        "relative_bias": "alibi",
        "embedding_norm": True,
        "activation": "gelu_bloom",
        "projections": "fused",
    },
    model="BloomForCausalLM",
    base="BloomModel",
    prefix="transformer.",
    heads={"score.": "classification", "classifier.": "classification", "qa_outputs.": "answers in a text"},
    harmless=frozenset(
        ["attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "pretraining_tp"]
    )
    | {"seq_length", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact"},
    derive=_derive,
    unwritten=("context",),
)
