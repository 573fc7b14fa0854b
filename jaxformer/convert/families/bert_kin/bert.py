"""BERT in transformers' format (`BertModel`, with its pooler), models with the same names (RoBERTa, XLM-R, and those of
theirs with norms before the sub-layers), and DistilBERT
(`DistilBertModel`): BERT without token types and pooler."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import EncoderConfig
from jaxformer.convert.families.bert_kin.bert_heads import ANSWERS, TIED, UNREAD, bert_tasks, roberta_tasks
from jaxformer.convert.family import Family, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType, Only, Task

NAMES = {
    "embed.token": "embeddings.word_embeddings",
    "embed.position": "embeddings.position_embeddings",
    "embed.token_type": "embeddings.token_type_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
    "pooler": "pooler.dense",
}

BERT = Family(
    name="bert",
    stacks={"stack.blocks.": "encoder.layer.{layer}."},
    rules=(
        *projection_rules("attention", "attention", ("self.query", "self.key", "self.value"), "output.dense"),
        *(rule for jax, torch in NAMES.items() for rule in module_rules(jax, torch)),
    ),
    ignored={"embeddings.position_ids": "0, 1, 2, ..., which the model counts", "embeddings.token_type_ids": "all 0"},
)
"""Family for `EncoderConfig(norm_position="post", norm_epsilon=1e-12, embedding_norm=True, token_types=2, pooler=True,
padding_idx=0)`."""
ROBERTA = replace(BERT, name="roberta")
"""Family for BERT's configuration with `position_offset=2, padding_idx=1`."""
XLM_ROBERTA = replace(BERT, name="xlm-roberta")
"""Family for RoBERTa's configuration."""

RELATIVE = "each layer has a table of distances that would be left out"


def pooled(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set `pooler` only if there is a tensor for it: a model with a head for tokens is saved without. TypeError without token
    types."""
    if found.get("token_types") == 0:
        raise TypeError("type_vocab_size is 0, and every token has a type")
    return {"pooler": any(name.endswith("pooler.dense.weight") for name in names)} | found


BERT_TYPE = ModelType(
    name="bert",
    config=EncoderConfig,
    family=BERT,
    keys={
        "vocab_size": Field("vocab_size", 30522),
        "max_position_embeddings": Field("context", 512),
        "hidden_size": Field("d_model", 768),
        "num_hidden_layers": Field("n_layers", 12),
        "num_attention_heads": Field("n_heads", 12),
        "intermediate_size": Field("d_ff", 3072),
        "hidden_act": Field("activation", "gelu", ACTIVATIONS),
        "layer_norm_eps": Field("norm_epsilon", 1e-12),
        "type_vocab_size": Field("token_types", 2),
        "pad_token_id": Field("padding_idx", 0),
        "attention_probs_dropout_prob": Field("attention_dropout", 0.1),
        "hidden_dropout_prob": Field("residual_dropout", 0.1, also=("embedding_dropout",)),
        "position_embedding_type": Only("absolute", RELATIVE),
    },
    fixed={"norm_position": "post", "embedding_norm": True},
    model="BertModel",
    base="BertModel",
    prefix="bert.",
    heads={"cls.predictions.": "masked words", "cls.seq_relationship.": "next sentences"} | UNREAD,
    harmless=frozenset(
        [
            *("classifier_dropout", "directionality", "tie_word_embeddings", "pooler_fc_size", "pooler_num_attention_heads"),
            *("pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
        ]
    ),
    derive=pooled,
    tasks=bert_tasks("Bert", "bert."),
)


def after_padding(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the offset of positions, which are counted from the row after the padding's."""
    if found["padding_idx"] is None:
        raise TypeError("pad_token_id is null, and positions are counted from it")
    offset = found["padding_idx"] + 1
    return pooled(found | {"position_offset": offset, "context": found["context"] - offset}, names)


ROBERTA_TYPE = replace(
    BERT_TYPE,
    name="roberta",
    family=ROBERTA,
    keys={**BERT_TYPE.keys, "vocab_size": Field("vocab_size", 50265), "pad_token_id": Field("padding_idx", 1)},
    model="RobertaModel",
    base="RobertaModel",
    prefix="roberta.",
    heads={"lm_head.": "masked words"} | UNREAD,
    derive=after_padding,
    undo=lambda config: {"max_position_embeddings": config.context + config.position_offset},
    tasks=roberta_tasks("Roberta"),
)
"""Model type of RoBERTa.

In torch, a token that is `pad_token_id` has the position before the first, and is not counted in the positions of later tokens:
give `positions` if padding is on the left, or between other tokens.
"""
XLM_ROBERTA_TYPE = replace(
    ROBERTA_TYPE,
    name="xlm-roberta",
    family=XLM_ROBERTA,
    keys={**ROBERTA_TYPE.keys, "vocab_size": Field("vocab_size", 30522)},
    model="XLMRobertaModel",
    base="XLMRobertaModel",
    tasks=roberta_tasks("XLMRoberta"),
)


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


_DISTILBERT_NAMES = {
    "embed.token": "embeddings.word_embeddings",
    "embed.position": "embeddings.position_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "attention_norm": "sa_layer_norm",
    "feed_forward.up": "ffn.lin1",
    "feed_forward.down": "ffn.lin2",
    "feed_forward_norm": "output_layer_norm",
}

DISTILBERT = Family(
    name="distilbert",
    stacks={"stack.blocks.": "transformer.layer.{layer}."},
    rules=(
        *projection_rules("attention", "attention", ("q_lin", "k_lin", "v_lin"), "out_lin"),
        *(rule for jax, torch in _DISTILBERT_NAMES.items() for rule in module_rules(jax, torch)),
    ),
    ignored={"embeddings.position_ids": "0, 1, 2, ..., which the model counts"},
)
"""Family for `EncoderConfig(norm_position="post", norm_epsilon=1e-12, embedding_norm=True, padding_idx=0)`."""

_DISTILBERT_TASKS = {
    "masked_lm": Task(
        models=("DistilBertForMaskedLM",),
        starts=("vocab_",),
        names={
            "head.transform.dense": "vocab_transform",
            "head.transform.norm": "vocab_layer_norm",
            "head.bias": "vocab_projector.bias",
        },
        tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
        keys=TIED,
    ),
    "sequence_classification": Task(
        models=("DistilBertForSequenceClassification",),
        starts=("pre_classifier.", "classifier."),
        names={"pooler": "pre_classifier", "head.output": "classifier"},
        keys={"seq_classif_dropout": Field("head_dropout", 0.2)},
        fixed={"pooler": True, "pooler_activation": "relu"},
    ),
    "token_classification": Task(
        models=("DistilBertForTokenClassification",),
        starts=("classifier.",),
        names={"head.output": "classifier"},
        fixed={"head_dropout": None},
    ),
    "question_answering": Task(
        models=("DistilBertForQuestionAnswering",), **ANSWERS, keys={"qa_dropout": Field("head_dropout", 0.1)}
    ),
}

DISTILBERT_TYPE = ModelType(
    name="distilbert",
    config=EncoderConfig,
    family=DISTILBERT,
    keys={
        "vocab_size": Field("vocab_size", 30522),
        "max_position_embeddings": Field("context", 512),
        "dim": Field("d_model", 768),
        "n_layers": Field("n_layers", 6),
        "n_heads": Field("n_heads", 12),
        "hidden_dim": Field("d_ff", 3072),
        "activation": Field("activation", "gelu", ACTIVATIONS),
        "pad_token_id": Field("padding_idx", 0),
        "attention_dropout": Field("attention_dropout", 0.1),
        "dropout": Field("residual_dropout", 0.1, also=("embedding_dropout",)),  # torch: no dropout after attention
        "sinusoidal_pos_embds": Only(False, "the table of positions would be trained on, and is sinusoids"),
    },
    fixed={"norm_position": "post", "norm_epsilon": 1e-12, "embedding_norm": True},
    model="DistilBertModel",
    base="DistilBertModel",
    prefix="distilbert.",
    heads={"vocab_": "masked words", "pre_classifier.": "classification"} | UNREAD,
    harmless=frozenset(["qa_dropout", "seq_classif_dropout", "tie_weights_", "tie_word_embeddings"]),
    tasks=_DISTILBERT_TASKS,
)
