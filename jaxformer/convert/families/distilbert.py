"""DistilBERT in transformers' format (`DistilBertModel`): BERT without token types and pooler."""

from jaxformer.config.models import EncoderConfig
from jaxformer.convert.family import Family, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType, Only

_NAMES = {
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
        *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch)),
    ),
    ignored={"embeddings.position_ids": "0, 1, 2, ..., which the model counts"},
)
"""Family for `EncoderConfig(norm_position="post", norm_epsilon=1e-12, embedding_norm=True, padding_idx=0)`."""

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
    heads={
        "vocab_": "masked words",
        "pre_classifier.": "classification",
        "classifier.": "classification",
        "qa_outputs.": "answers in a text",
    },
    harmless=frozenset(["qa_dropout", "seq_classif_dropout", "tie_weights_", "tie_word_embeddings"]),
)
