"""Nomic BERT in transformers' format (`NomicBertModel`): a post-norm encoder with rotary positions and gated layers without
biases."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import EncoderConfig
from jaxformer.convert.decoder_keys import ROPE, rope_keys
from jaxformer.convert.families.bert_kin.bert import pooled
from jaxformer.convert.families.bert_kin.bert_heads import bert_tasks
from jaxformer.convert.families.llama import NO_BIAS, PROJECTIONS, rotary
from jaxformer.convert.family import Family, module_rules, packed_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType

_NAMES = {
    "embed.token": "embeddings.word_embeddings",
    "embed.token_type": "embeddings.token_type_embeddings",
    "embed.norm": "emb_ln",
    "attention.out": "attn.out_proj",
    "attention_norm": "norm1",
    "feed_forward_norm": "norm2",
    "feed_forward.gate": "mlp.fc12",
    "feed_forward.up": "mlp.fc11",
    "feed_forward.down": "mlp.fc2",
    "pooler": "pooler.dense",
}
_NAMES_IN_MEMORY = {
    "embed.token": "embeddings.word_embeddings",
    "embed.token_type": "embeddings.token_type_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "attention_norm": "post_attention_layernorm",
    "feed_forward_norm": "post_mlp_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.up": "mlp.up_proj",
    "feed_forward.down": "mlp.down_proj",
    "pooler": "pooler.dense",
}

NOMIC_BERT = Family(
    name="nomic_bert",
    stacks={"stack.blocks.": "encoder.layers.{layer}."},
    rules=(
        *packed_rules("attention", "attn.Wqkv", "(K G H + K H + K H)"),
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
)
"""Family for `EncoderConfig(norm_position="post", norm_epsilon=1e-12, embedding_norm=True, token_types=2, positions="none",
rotary="half", rotary_base=1000.0, gated=True, activation="silu", qkv_bias=False, output_bias=False, feed_forward_bias=False)`;
projections are fused or separate."""
NOMIC_MEMORY = Family(
    name="nomic_memory",
    stacks={"stack.blocks.": "layers.{layer}."},
    rules=(*PROJECTIONS, *(rule for pair in _NAMES_IN_MEMORY.items() for rule in module_rules(*pair))),
)
"""Family of the same model in the memory of transformers 5."""

_TASKS = {task: it for task, it in bert_tasks("NomicBert", "nomic_bert.").items() if task != "question_answering"}
_HEAD = {"head.transform.norm": "cls.predictions.transform.layer_norm"}


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return pooled(rotary(found), names)


NOMIC_BERT_TYPE = ModelType(
    name="nomic_bert",
    config=EncoderConfig,
    family=NOMIC_BERT,
    keys={
        "vocab_size": Field("vocab_size", 30528),
        "max_position_embeddings": Field("context", 2048),
        "hidden_size": Field("d_model", 768),
        "num_hidden_layers": Field("n_layers", 12),
        "num_attention_heads": Field("n_heads", 12),
        "head_dim": Field("head_dim", None),
        "intermediate_size": Field("d_ff", 3072),
        "hidden_act": Field("activation", "silu", ACTIVATIONS),
        "layer_norm_eps": Field("norm_epsilon", 1e-12),
        "type_vocab_size": Field("token_types", 2),
        "pad_token_id": Field("padding_idx", 0),
        "attention_probs_dropout_prob": Field("attention_dropout", 0.0),
        "hidden_dropout_prob": Field("residual_dropout", 0.0, also=("embedding_dropout",)),
        **ROPE,
        "rope_theta": Field("rope_theta", 1000.0),
    },
    fixed={
        "norm_position": "post",
        "embedding_norm": True,
        "positions": "none",
        "rotary": "half",
        "gated": True,
        "projections": "fused",
        **NO_BIAS,
    },
    model="NomicBertModel",
    base="NomicBertModel",
    prefix="nomic_bert.",
    heads={"cls.predictions.": "masked words", "classifier.": "classification"},
    harmless=frozenset(["classifier_dropout", "default_theta", "tie_word_embeddings"]),
    derive=_derive,
    undo=lambda config: rope_keys(config) | {"head_dim": config.head_width},
    tasks=_TASKS | {"masked_lm": replace(_TASKS["masked_lm"], names={**_TASKS["masked_lm"].names, **_HEAD})},
    memory=NOMIC_MEMORY,
)
