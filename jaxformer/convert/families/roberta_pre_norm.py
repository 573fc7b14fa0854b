"""RoBERTa with norms before the sub-layers, in transformers' format: RoBERTa-PreLayerNorm and XLM-RoBERTa-XL."""

from dataclasses import replace

from jaxformer.convert.families.bert import BERT, ROBERTA_TYPE, XLM_ROBERTA_TYPE
from jaxformer.convert.families.bert_heads import roberta_tasks
from jaxformer.convert.family import module_rules
from jaxformer.convert.model_type import Field

_NORMS = {"attention_norm": "attention.LayerNorm", "feed_forward_norm": "intermediate.LayerNorm"}
_LAST = {"embed.norm": "embeddings.LayerNorm", "norm": "LayerNorm"}
_NORMS_XL = {
    "attention_norm": "attention.self_attn_layer_norm",
    "feed_forward_norm": "LayerNorm",
    "norm": "encoder.LayerNorm",
}

ROBERTA_PRE_NORM = replace(
    BERT,
    name="roberta-prelayernorm",
    rules=tuple(rule for pair in (_NORMS | _LAST).items() for rule in module_rules(*pair)) + BERT.rules,
)
"""Family for RoBERTa's configuration with `norm_position="pre"`."""
XLM_ROBERTA_XL = replace(
    BERT,
    name="xlm-roberta-xl",
    rules=tuple(rule for pair in _NORMS_XL.items() for rule in module_rules(*pair)) + BERT.rules,
)
"""Family for RoBERTa's configuration with `norm_position="pre", embedding_norm=False`."""

ROBERTA_PRE_NORM_TYPE = replace(
    ROBERTA_TYPE,
    name="roberta-prelayernorm",
    family=ROBERTA_PRE_NORM,
    fixed={"norm_position": "pre", "embedding_norm": True},
    model="RobertaPreLayerNormModel",
    base="RobertaPreLayerNormModel",
    prefix="roberta_prelayernorm.",
    tasks=roberta_tasks("RobertaPreLayerNorm", "roberta_prelayernorm."),
)
XLM_ROBERTA_XL_TYPE = replace(
    XLM_ROBERTA_TYPE,
    name="xlm-roberta-xl",
    family=XLM_ROBERTA_XL,
    keys={
        **XLM_ROBERTA_TYPE.keys,
        "vocab_size": Field("vocab_size", 250880),
        "hidden_size": Field("d_model", 2560),
        "num_hidden_layers": Field("n_layers", 36),
        "num_attention_heads": Field("n_heads", 32),
        "intermediate_size": Field("d_ff", 10240),
        "max_position_embeddings": Field("context", 514),
        "type_vocab_size": Field("token_types", 1),
        "layer_norm_eps": Field("norm_epsilon", 1e-5),
    },
    fixed={"norm_position": "pre"},
    model="XLMRobertaXLModel",
    base="XLMRobertaXLModel",
    tasks=roberta_tasks("XLMRobertaXL"),
)
