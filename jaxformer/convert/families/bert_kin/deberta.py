"""DeBERTa-v2 and v3 in transformers' format (`DebertaV2Model`): BERT's layers with disentangled attention."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.config.models import EncoderConfig
from jaxformer.convert.families.bert_kin.bert import BERT, BERT_TYPE
from jaxformer.convert.families.bert_kin.bert_heads import ANSWERS, UNREAD, bert_tasks
from jaxformer.convert.family import Rule, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, Only, Same, Task
from jaxformer.errors import ConfigError

DEBERTA_V2 = replace(
    BERT,
    name="deberta-v2",
    rules=(
        *projection_rules("attention", "attention", ("self.query_proj", "self.key_proj", "self.value_proj"), "output.dense"),
        Rule("stack.distances.table", "encoder.rel_embeddings.weight"),
        *module_rules("stack.distances.norm", "encoder.LayerNorm"),
        *BERT.rules,
    ),
)
"""Family for `EncoderConfig(norm_position="post", norm_epsilon=1e-7, embedding_norm=True, relative_bias="disentangled",
relative_norm=True, positions="none")`, with `relative_buckets`, `relative_distance` and `attention_scale=(3 * H) ** -0.5`."""

BOTH = {"c2p", "p2c"}
"""Products of disentangled attention beside that of contents: content with position, and position with content."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the buckets of distances, the norm of their encodings, and the scale of scores, which torch rounds to float32."""
    kinds, norms, units = found.pop("pos_att_type") or (), found.pop("norm_rel_ebd"), found.pop("units")
    del found["share_att_key"]
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    if {it.strip() for it in kinds} != BOTH:
        raise ConfigError(
            f"pos_att_type = {kinds!r:.40} is not supported (['p2c', 'c2p'] is): scores would be of other products"
        )
    if found["relative_buckets"] < 1:
        raise ConfigError(f"position_buckets = {found['relative_buckets']} is not supported: distances without buckets")
    width = units or found["d_model"] // found["n_heads"]
    return found | {
        "head_dim": units,
        "pooler": any(name.endswith("pooler.dense.weight") for name in names),
        "relative_norm": "layer_norm" in norms.lower(),
        "relative_distance": found["relative_distance"] if found["relative_distance"] > 0 else found["context"],
        "attention_scale": 1 / float(np.sqrt(np.float32(3 * width))),
    }


def _undo(config: EncoderConfig) -> dict[str, Any]:
    units = {} if config.head_width * config.n_heads == config.d_model else {"attention_head_size": config.head_width}
    return units | {
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm" if config.relative_norm else "none",
        "max_relative_positions": -1 if config.relative_distance == config.context else config.relative_distance,
    }


_DROPPED = {"cls_dropout": Field("head_dropout", None), "pooler_hidden_act": Field("pooler_activation", "gelu", ACTIVATIONS)}
_MASKED = bert_tasks("DebertaV2", "deberta.")["masked_lm"]
_LEGACY = {"legacy": Only(True, "the head for masked tokens has other tensors")}

DEBERTA_V2_TYPE = replace(
    BERT_TYPE,
    name="deberta-v2",
    family=DEBERTA_V2,
    keys={
        **{name: key for name, key in BERT_TYPE.keys.items() if name != "position_embedding_type"},
        "vocab_size": Field("vocab_size", 128100),
        "hidden_size": Field("d_model", 1536),
        "num_hidden_layers": Field("n_layers", 24),
        "num_attention_heads": Field("n_heads", 24),
        "intermediate_size": Field("d_ff", 6144),
        "layer_norm_eps": Field("norm_epsilon", 1e-7),
        "type_vocab_size": Field("token_types", 0),
        "attention_head_size": Field("units", None),
        "embedding_size": Same("hidden_size"),
        "position_biased_input": Field("positions", True, {True: "learned", False: "none"}),
        "relative_attention": Field("relative_bias", False, {True: "disentangled"}),
        "share_att_key": Field("share_att_key", False, {True: True}),
        "position_buckets": Field("relative_buckets", -1),
        "max_relative_positions": Field("relative_distance", -1),
        "pos_att_type": Field("pos_att_type", None),
        "norm_rel_ebd": Field("norm_rel_ebd", "none"),
        "conv_kernel_size": Only(0, "the convolution beside the first layer would be left out"),
    },
    model="DebertaV2Model",
    base="DebertaV2Model",
    prefix="deberta.",
    heads={"cls.predictions.": "masked words", "lm_predictions.": "masked words", "pooler.": "classification"} | UNREAD,
    harmless=frozenset(
        [
            *("legacy", "tie_word_embeddings", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size", "cls_dropout"),
            *("conv_act", "conv_groups"),  # read with a convolution alone
        ]
    ),
    derive=_derive,
    undo=_undo,
    tasks={
        "masked_lm": replace(_MASKED, models=("DebertaV2ForMaskedLM",), keys={**_MASKED.keys, **_LEGACY}),
        "sequence_classification": Task(
            models=("DebertaV2ForSequenceClassification",),
            starts=("classifier.", "pooler."),
            names={"pooler": "pooler.dense", "head.output": "classifier"},
            keys=_DROPPED,
            fixed={"pooler": True},
        ),
        "token_classification": Task(
            models=("DebertaV2ForTokenClassification",),
            starts=("classifier.",),
            names={"head.output": "classifier"},
            fixed={"head_dropout": None},
        ),
        "question_answering": Task(models=("DebertaV2ForQuestionAnswering",), **ANSWERS),
    },
)
