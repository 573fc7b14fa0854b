"""Heads of BERT and RoBERTa in transformers' format, which other model types share."""

from jaxformer.convert.model_type import Field, Only, Task

TIED = {"tie_word_embeddings": Only(True, "logits would be computed with the embeddings' table, and there is another")}
DROPPED = {"classifier_dropout": Field("head_dropout", None)}
UNREAD = {"classifier.": "classification", "qa_outputs.": "answers in a text"}
"""Starts of the tensors of heads for whole texts and for answers, where jaxformer has no counterpart -> the task."""
ANSWERS = {"starts": ("qa_outputs.",), "names": {"head.output": "qa_outputs"}}


def bert_tasks(name: str, prefix: str) -> dict[str, Task]:
    """Return the heads of BERT, of classes whose names begin so; `prefix` is that of the encoder's tensors."""
    return {
        "masked_lm": Task(
            models=(f"{name}ForMaskedLM", f"{name}ForPreTraining"),
            starts=("cls.predictions.",),
            names={
                "head.transform.dense": "cls.predictions.transform.dense",
                "head.transform.norm": "cls.predictions.transform.LayerNorm",
                "head.bias": "cls.predictions.bias",
            },
            tied={
                "cls.predictions.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
                "cls.predictions.decoder.bias": "cls.predictions.bias",
            },
            keys=TIED,
        ),
        "sequence_classification": Task(
            models=(f"{name}ForSequenceClassification",),
            starts=("classifier.",),
            names={"head.output": "classifier"},
            keys=DROPPED,
            fixed={"pooler": True},
        ),
        "token_classification": Task(
            models=(f"{name}ForTokenClassification",),
            starts=("classifier.",),
            names={"head.output": "classifier"},
            keys=DROPPED,
        ),
        "question_answering": Task(models=(f"{name}ForQuestionAnswering",), **ANSWERS),
    }


def roberta_tasks(name: str, prefix: str = "roberta.") -> dict[str, Task]:
    """Return the heads of RoBERTa, as `bert_tasks`. Its classifier's first layer is a pooler."""
    return {
        "masked_lm": Task(
            models=(f"{name}ForMaskedLM",),
            starts=("lm_head.",),
            names={
                "head.transform.dense": "lm_head.dense",
                "head.transform.norm": "lm_head.layer_norm",
                "head.bias": "lm_head.bias",
            },
            tied={
                "lm_head.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
                "lm_head.decoder.bias": "lm_head.bias",
            },
            keys=TIED,
            fixed={"head_activation": "gelu"},
        ),
        "sequence_classification": Task(
            models=(f"{name}ForSequenceClassification",),
            starts=("classifier.dense.", "classifier.out_proj."),
            names={"pooler": "classifier.dense", "head.output": "classifier.out_proj"},
            ignored={f"{prefix}pooler.dense.*": "the classifier reads the first token's state"},
            keys=DROPPED,  # torch: dropout before the pooler too
            fixed={"pooler": True},
        ),
        "token_classification": Task(
            models=(f"{name}ForTokenClassification",),
            starts=("classifier.weight", "classifier.bias"),
            names={"head.output": "classifier"},
            keys=DROPPED,
        ),
        "question_answering": Task(models=(f"{name}ForQuestionAnswering",), **ANSWERS),
    }
