"""ModernBERT in transformers' format (`ModernBertModel`): a pre-norm encoder with rotary positions, windows in most layers, and
no norm before the attention of its first layer."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import EncoderConfig, GPTConfig
from jaxformer.convert.axes import Part
from jaxformer.convert.decoder_keys import layer_types, read_by_layer, read_layers, rope_by_layer
from jaxformer.convert.families.bert_kin.bert_heads import TIED
from jaxformer.convert.families.glm import PACKED
from jaxformer.convert.family import Family, Rule, module_rules, packed_rules, stacks_below
from jaxformer.convert.model_type import ACTIVATIONS, Field, Key, ModelType, Only, Task

LAYER_NAMES = {
    "attention.out": "attn.Wo",
    "attention_norm": "attn_norm",
    "feed_forward_norm": "mlp_norm",
    "feed_forward.down": "mlp.Wo",
}
_NAMES = {
    "embed.token": "embeddings.tok_embeddings",
    "embed.norm": "embeddings.norm",
    **LAYER_NAMES,
    "norm": "final_norm",
}
_LEAVES = ("kernel", "weight", PACKED), ("bias", "bias", "(f + f) -> (f + f)")
GATE_UP = tuple(
    Rule(f"feed_forward.{own}.{leaf}", f"mlp.Wi.{name}", layout, Part(number, 2))
    for number, own in enumerate(("gate", "up"))
    for leaf, name, layout in _LEAVES
)
"""Rules of the gate and up projections as one tensor, with its bias."""

MODERNBERT = Family(
    name="modernbert",
    stacks=stacks_below("layers."),
    rules=(
        *packed_rules("attention", "attn.Wqkv", "(K G H + K H + K H)"),
        *GATE_UP,
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
)
"""Family for `EncoderConfig(first_attention_norm=False, embedding_norm=True, norm_bias=False, positions="none", rotary="half",
gated=True, qkv_bias=False, output_bias=False, feed_forward_bias=False)`, with `window`, `layer_pattern` and
`rotary_window_base`; projections are fused or separate."""


def read_kinds(found: dict[str, Any], window: int | None) -> dict[str, Any]:
    """Set the layers with this window, and rotary positions: without `layer_types`, every third layer sees all tokens."""
    types, period = found.pop("layer_types"), found.pop("global_attn_every_n_layers")
    types = types or ["sliding_attention" if i % period else "full_attention" for i in range(found["n_layers"])]
    found = found | read_layers(types, found | {"window": window})
    parameters = found.pop("rope_parameters") or {}
    bases = {f"{each}_attention": found.pop(name) for each, name in (("full", "global"), ("sliding", "local"))}
    whole, near = ({"rope_theta": base} | (parameters.get(each) or {}) for each, base in bases.items())
    return found | read_by_layer(parameters, whole, near, found)


def kind_keys(config: EncoderConfig | GPTConfig) -> dict[str, Any]:
    """Return the keys of the layers' kinds and of their rotary positions, the inverse of `read_kinds`."""
    by_layer = rope_by_layer(config)
    bases = {"global": by_layer["full_attention"]["rope_theta"], "local": by_layer["sliding_attention"]["rope_theta"]}
    return {
        "layer_types": layer_types(config),
        "rope_parameters": by_layer,
        **{f"{each}_rope_theta": base for each, base in bases.items()},
    }


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    return read_kinds(found, found.pop("local_attention") // 2 + 1)


def _undo(config: EncoderConfig) -> dict[str, Any]:
    return kind_keys(config) | ({} if config.window is None else {"local_attention": 2 * (config.window - 1)})


HEAD_KEYS: dict[str, Key] = {
    "classifier_activation": Field("head_activation", "gelu", ACTIVATIONS),
    "classifier_bias": Field("head_dense_bias", False),
}
"""Keys of the dense layer before the logits."""
KEYS: dict[str, Key] = {
    "vocab_size": Field("vocab_size", 50368),
    "max_position_embeddings": Field("context", 8192),
    "hidden_size": Field("d_model", 768),
    "num_hidden_layers": Field("n_layers", 22),
    "num_attention_heads": Field("n_heads", 12),
    "intermediate_size": Field("d_ff", 1152),
    "hidden_activation": Field("activation", "gelu", ACTIVATIONS),
    "norm_eps": Field("norm_epsilon", 1e-5),
    "norm_bias": Field("norm_bias", False),
    "attention_bias": Field("qkv_bias", False, also=("output_bias",)),
    "mlp_bias": Field("feed_forward_bias", False),
    "pad_token_id": Field("padding_idx", 50283),
    "embedding_dropout": Field("embedding_dropout", 0.0),
    "attention_dropout": Field("attention_dropout", 0.0),  # torch: dropout after attention too
    "mlp_dropout": Field("feed_forward_dropout", 0.0),
    "local_attention": Field("local_attention", 128),
    "layer_types": Field("layer_types", None),
    "global_attn_every_n_layers": Field("global_attn_every_n_layers", 3),
    "global_rope_theta": Field("global", 160000.0),
    "local_rope_theta": Field("local", 10000.0),
    "rope_parameters": Field("rope_parameters", None),
    "rope_scaling": Only(None, "the angles of rotary positions would not be scaled"),
    "rope_theta": Only(None, "transformers reads global_rope_theta and local_rope_theta for it"),
}
"""Keys that the encoder and the decoder share."""
FIXED = {
    "positions": "none",
    "rotary": "half",
    "gated": True,
    "embedding_norm": True,
    "first_attention_norm": False,
}
UNREAD = frozenset(
    [
        *("classifier_activation", "classifier_bias", "classifier_dropout", "classifier_pooling", "decoder_bias"),
        *("initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile", "repad_logits_with_grad"),
        *("sparse_prediction", "sparse_pred_ignore_index", "tie_word_embeddings"),
        *("layer_norm_eps", "position_embedding_type"),  # transformers does not read them
    ]
)
"""Keys that change no output, or that of some heads alone."""
_NAMES_OF_HEADS = {"head.transform.dense": "head.dense", "head.transform.norm": "head.norm"}
_LABELS = Task(
    models=("ModernBertForTokenClassification",),
    starts=("classifier.",),
    names=_NAMES_OF_HEADS | {"head.output": "classifier"},
    keys=HEAD_KEYS | {"classifier_dropout": Field("head_dropout", 0.0)},
    fixed={"head_transform": True},
)
_POOLED = {"classifier_pooling": Field("head_pooling", "cls", {"cls": "cls", "mean": "mean"})}

MODERNBERT_TYPE = ModelType(
    name="modernbert",
    config=EncoderConfig,
    family=MODERNBERT,
    keys=KEYS,
    fixed=FIXED | {"projections": "fused"},
    model="ModernBertModel",
    base="ModernBertModel",
    prefix="model.",
    heads={"head.": "a task", "decoder.": "masked words", "classifier.": "classification"},
    harmless=UNREAD,
    derive=_derive,
    undo=_undo,
    tasks={
        "masked_lm": Task(
            models=("ModernBertForMaskedLM",),
            starts=("decoder.",),
            names=_NAMES_OF_HEADS | {"head.bias": "decoder.bias"},
            tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
            keys=HEAD_KEYS | TIED | {"decoder_bias": Only(True, "the logits have no bias, and would have one")},
        ),
        "sequence_classification": replace(
            _LABELS, models=("ModernBertForSequenceClassification",), keys={**_LABELS.keys, **_POOLED}
        ),
        "token_classification": _LABELS,
        "question_answering": replace(_LABELS, models=("ModernBertForQuestionAnswering",)),
    },
)
