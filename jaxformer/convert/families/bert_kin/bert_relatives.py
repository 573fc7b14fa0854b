"""Encoders in transformers' format whose tables are variations of BERT's and RoBERTa's: CamemBERT, data2vec, ERNIE, ELECTRA,
MPNet and ALBERT."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.convert.families.bert_kin.bert import BERT, BERT_TYPE, NAMES, ROBERTA, ROBERTA_TYPE, after_padding
from jaxformer.convert.families.bert_kin.bert_heads import ANSWERS, DROPPED, TIED, UNREAD, bert_tasks, roberta_tasks
from jaxformer.convert.family import Family, Rule, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, Only, Task

CAMEMBERT = replace(ROBERTA, name="camembert")
"""Family for RoBERTa's configuration."""
DATA2VEC_TEXT = replace(ROBERTA, name="data2vec-text")
"""Family for RoBERTa's configuration."""
ERNIE = replace(BERT, name="ernie")
"""Family for BERT's configuration."""

CAMEMBERT_TYPE = replace(
    ROBERTA_TYPE,
    name="camembert",
    family=CAMEMBERT,
    keys={**ROBERTA_TYPE.keys, "vocab_size": Field("vocab_size", 30522)},
    model="CamembertModel",
    base="CamembertModel",
    tasks=roberta_tasks("Camembert"),
)
DATA2VEC_TEXT_TYPE = replace(
    CAMEMBERT_TYPE,
    name="data2vec-text",
    family=DATA2VEC_TEXT,
    model="Data2VecTextModel",
    base="Data2VecTextModel",
    prefix="data2vec_text.",
    tasks=roberta_tasks("Data2VecText", "data2vec_text."),
)
ERNIE_TYPE = replace(
    BERT_TYPE,
    name="ernie",
    family=ERNIE,
    keys={**BERT_TYPE.keys, "use_task_id": Only(False, "embeddings of tasks would be left out")},
    model="ErnieModel",
    base="ErnieModel",
    prefix="ernie.",
    harmless=BERT_TYPE.harmless | {"task_type_vocab_size"},
    tasks=bert_tasks("Ernie", "ernie."),
)

ELECTRA = Family(
    name="electra",
    stacks=BERT.stacks,
    rules=(*module_rules("embed.project", "embeddings_project"), *BERT.rules),
    ignored=BERT.ignored,
)
"""Family for BERT's configuration with `pooler=False`, and with an `embedding_width` where the embeddings have one."""


def _wide(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the width of the embeddings, which only have a linear layer after them if it is not the model's."""
    same = found["embedding_width"] == found["d_model"]
    return found | ({"embedding_width": None} if same else {})


ELECTRA_TYPE = replace(
    BERT_TYPE,
    name="electra",
    family=ELECTRA,
    keys={
        **BERT_TYPE.keys,
        "hidden_size": Field("d_model", 256),
        "num_attention_heads": Field("n_heads", 4),
        "intermediate_size": Field("d_ff", 1024),
        "embedding_size": Field("embedding_width", 128),
    },
    model="ElectraModel",
    base="ElectraModel",
    prefix="electra.",
    heads={
        "generator_": "masked words",
        "discriminator_predictions.": "replaced tokens",
        "sequence_summary.": "multiple choice",
    }
    | UNREAD,
    harmless=frozenset(
        [
            *("classifier_dropout", "tie_word_embeddings", "summary_type", "summary_use_proj", "summary_activation"),
            *("summary_first_dropout", "summary_last_dropout"),
        ]
    ),
    derive=_wide,
    undo=lambda config: {"embedding_size": config.token_width},
    tasks={
        "masked_lm": Task(
            models=("ElectraForMaskedLM",),
            starts=("generator_",),
            names={
                "head.transform.dense": "generator_predictions.dense",
                "head.transform.norm": "generator_predictions.LayerNorm",
                "head.bias": "generator_lm_head.bias",
            },
            tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
            keys=TIED,
            fixed={"head_activation": "gelu"},
        ),
        "sequence_classification": Task(
            models=("ElectraForSequenceClassification",),
            starts=("classifier.dense.", "classifier.out_proj."),
            names={"pooler": "classifier.dense", "head.output": "classifier.out_proj"},
            keys=DROPPED,  # torch: dropout before the pooler too
            fixed={"pooler": True, "pooler_activation": "gelu"},
        ),
        "token_classification": Task(
            models=("ElectraForTokenClassification",),
            starts=("classifier.weight", "classifier.bias"),
            names={"head.output": "classifier"},
            keys=DROPPED,
        ),
        "question_answering": Task(models=("ElectraForQuestionAnswering",), **ANSWERS),
    },
)

_MPNET_NAMES = {name: torch for name, torch in NAMES.items() if name != "embed.token_type"}
_MPNET_NAMES |= {"attention_norm": "attention.LayerNorm"}
MPNET = Family(
    name="mpnet",
    stacks=BERT.stacks,
    rules=(
        *projection_rules("attention", "attention.attn", ("q", "k", "v"), "o"),
        Rule("stack.relative_bias.table", "encoder.relative_attention_bias.weight"),
        *(rule for jax, torch in _MPNET_NAMES.items() for rule in module_rules(jax, torch)),
    ),
    ignored=BERT.ignored,
)
"""Family for RoBERTa's configuration with `relative_bias="t5"` and without token types."""
ROW = 1
"""Row of both tables that is the padding's, whatever the configuration says."""


def _mpnet(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set the offset of positions. TypeError if the padding is not where the model has it."""
    if found["padding_idx"] != ROW:
        raise TypeError(f"pad_token_id is {found['padding_idx']}, and the model has padding in row {ROW}")
    return after_padding(found, names)


MPNET_TYPE = replace(
    ROBERTA_TYPE,
    name="mpnet",
    family=MPNET,
    keys={
        **{key: it for key, it in ROBERTA_TYPE.keys.items() if key not in ("type_vocab_size", "position_embedding_type")},
        "vocab_size": Field("vocab_size", 30527),
        "relative_attention_num_buckets": Only(32, "torch puts distances into 32 buckets, whatever it says"),
    },
    fixed={**ROBERTA_TYPE.fixed, "relative_bias": "t5"},
    model="MPNetModel",
    base="MPNetModel",
    prefix="mpnet.",
    derive=_mpnet,
    tasks={
        head: replace(task, keys={}, fixed={**task.fixed, "head_dropout": None}) if task.keys is DROPPED else task
        for head, task in roberta_tasks("MPNet", "mpnet.").items()
    },
)

_ALBERT_NAMES = {
    "embed.token": "embeddings.word_embeddings",
    "embed.position": "embeddings.position_embeddings",
    "embed.token_type": "embeddings.token_type_embeddings",
    "embed.norm": "embeddings.LayerNorm",
    "embed.project": "encoder.embedding_hidden_mapping_in",
    "attention_norm": "attention.LayerNorm",
    "feed_forward.up": "ffn",
    "feed_forward.down": "ffn_output",
    "feed_forward_norm": "full_layer_layer_norm",
    "pooler": "pooler",
}
ALBERT = Family(
    name="albert",
    stacks={"stack.blocks.": "encoder.albert_layer_groups.{layer}.albert_layers.0."},
    rules=(
        *projection_rules("attention", "attention", ("query", "key", "value"), "dense"),
        *(rule for jax, torch in _ALBERT_NAMES.items() for rule in module_rules(jax, torch)),
    ),
    ignored=BERT.ignored,
)
"""Family for BERT's configuration with `shared_layers=True` and an `embedding_width`, also where that is d_model."""
_GROUPS = "layers would share their parameters in another way"


def _albert(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set `pooler` only if there is a tensor for it."""
    return {"pooler": any(name.endswith("pooler.weight") for name in names)} | found


ALBERT_TYPE = replace(
    BERT_TYPE,
    name="albert",
    family=ALBERT,
    keys={
        **BERT_TYPE.keys,
        "vocab_size": Field("vocab_size", 30000),
        "embedding_size": Field("embedding_width", 128),
        "hidden_size": Field("d_model", 4096),
        "num_attention_heads": Field("n_heads", 64),
        "intermediate_size": Field("d_ff", 16384),
        "hidden_act": Field("activation", "gelu_new", ACTIVATIONS),
        "attention_probs_dropout_prob": Field("attention_dropout", 0.0),
        "hidden_dropout_prob": Field("residual_dropout", 0.0, also=("embedding_dropout",)),
        "num_hidden_groups": Only(1, _GROUPS),
        "inner_group_num": Only(1, _GROUPS),
    },
    fixed={**BERT_TYPE.fixed, "shared_layers": True},
    model="AlbertModel",
    base="AlbertModel",
    prefix="albert.",
    heads={"predictions.": "masked words", "sop_classifier.": "order of sentences"} | UNREAD,
    harmless=frozenset(
        [
            *("classifier_dropout_prob", "tie_word_embeddings", "down_scale_factor", "gap_size", "net_structure_type"),
            *("num_memory_blocks", "layers_to_keep"),
        ]
    ),
    derive=_albert,
    tasks={
        "masked_lm": Task(
            models=("AlbertForMaskedLM", "AlbertForPreTraining"),
            starts=("predictions.",),
            names={
                "head.transform.dense": "predictions.dense",
                "head.transform.norm": "predictions.LayerNorm",
                "head.bias": "predictions.bias",
            },
            tied={
                "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
                "predictions.decoder.bias": "predictions.bias",
            },
            keys=TIED,
        ),
        **{
            head: replace(
                task,
                keys={"classifier_dropout_prob": Field("head_dropout", 0.1)} if task.keys is DROPPED else {},
            )
            for head, task in bert_tasks("Albert", "albert.").items()
            if head != "masked_lm"
        },
    },
)
