"""ModernBERT's decoder in transformers' format (`ModernBertDecoderForCausalLM`, Ettin): layers of the encoder, causal, and a
dense layer, an activation and a norm before the logits."""

from collections.abc import Collection
from typing import Any

from jaxformer.config.models import GPTConfig
from jaxformer.convert.families.bert_kin.modernbert import (
    FIXED,
    GATE_UP,
    HEAD_KEYS,
    KEYS,
    LAYER_NAMES,
    UNREAD,
    kind_keys,
    read_kinds,
)
from jaxformer.convert.family import Family, module_rules, projection_rules, stacks_below
from jaxformer.convert.model_type import Field, ModelType, Only
from jaxformer.errors import ConversionError

_NAMES = {
    "embed.token": "model.embeddings.tok_embeddings",
    "embed.norm": "model.embeddings.norm",
    **LAYER_NAMES,
    "head.transform.dense": "lm_head.dense",
    "head.transform.norm": "lm_head.norm",
    "head": "decoder",
    "norm": "model.final_norm",
}

MODERNBERT_DECODER = Family(
    name="modernbert-decoder",
    stacks=stacks_below("model.layers."),
    rules=(
        *projection_rules("attention", "attn", ("q_proj", "k_proj", "v_proj"), "Wo"),
        *GATE_UP,
        *(rule for pair in _NAMES.items() for rule in module_rules(*pair)),
    ),
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
)
"""Family for `GPTConfig(first_attention_norm=False, embedding_norm=True, norm_bias=False, positions="none", rotary="half",
gated=True, qkv_bias=False, output_bias=False, feed_forward_bias=False, head_transform=True, head_dense_bias=False, tied=True,
head_bias=True)`, with `window`, `layer_pattern` and `rotary_window_base`; projections are fused or separate."""


def _derive(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set windows and rotary positions: a window is half of the encoder's, and looks back alone."""
    around, window = found.pop("local_attention"), found.pop("sliding_window")
    return read_kinds(found, window if around is None or window is not None else around // 2)


def _undo(config: GPTConfig) -> dict[str, Any]:
    if config.padding_idx is None:
        raise ConversionError("padding_idx = None: transformers' modernbert-decoder needs the id of padding; give one")
    window = {} if config.window is None else {"local_attention": 2 * config.window, "sliding_window": config.window}
    return kind_keys(config) | window


MODERNBERT_DECODER_TYPE = ModelType(
    name="modernbert-decoder",
    config=GPTConfig,
    family=MODERNBERT_DECODER,
    keys={
        **KEYS,
        **HEAD_KEYS,
        "decoder_bias": Field("head_bias", True),
        "tie_word_embeddings": Field("tied", True),
        "sliding_window": Field("sliding_window", None),
        "is_causal": Only(True, "every token would see the later ones"),
    },
    fixed=FIXED | {"head_transform": True},
    model="ModernBertDecoderForCausalLM",
    base="ModernBertDecoderModel",
    prefix="model.",
    heads={"head.": "classification", "classifier.": "classification"},
    harmless=UNREAD | {"causal_mask"},
    derive=_derive,
    undo=_undo,
)
