"""T5 in transformers' format (`T5ForConditionalGeneration`: T5, T5 1.1, Flan-T5), mT5 and umT5.

The first layer of each stack owns the table of relative position biases; in umT5, each layer has one.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig
from jaxformer.convert.family import Family, Rule, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, Key, ModelType, Only

_LINEARS = ("q", "k", "v"), "o"
_NAMES = {
    "attention_norm": "layer.0.layer_norm",
    "cross_attention_norm": "layer.1.layer_norm",
    "decoder.blocks.feed_forward_norm": "decoder.block.{layer}.layer.2.layer_norm",
    "decoder.blocks.feed_forward.down": "decoder.block.{layer}.layer.2.DenseReluDense.wo",
    "feed_forward_norm": "layer.1.layer_norm",
    "feed_forward.down": "layer.1.DenseReluDense.wo",
    "embed.token": "shared",
    "encoder_norm": "encoder.final_layer_norm",
    "decoder_norm": "decoder.final_layer_norm",
    "head": "lm_head",
}
_FIRST = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def _family(name: str, feed_forward: dict[str, str]) -> Family:
    """Return a T5 family with these torch names of the feed-forward layers' first matrices.

    The feed-forward layer is the second sub-layer of an encoder layer, and the third one of a decoder layer.
    """
    inner = {
        f"decoder.blocks.feed_forward.{own}": f"decoder.block.{{layer}}.layer.2.DenseReluDense.{it}"
        for own, it in feed_forward.items()
    }
    inner |= {f"feed_forward.{own}": f"layer.1.DenseReluDense.{it}" for own, it in feed_forward.items()}
    return Family(
        name=name,
        stacks={f"{stack}.blocks.": f"{stack}.block.{{layer}}." for stack in ("encoder", "decoder")},
        rules=(
            *projection_rules("attention", "layer.0.SelfAttention", *_LINEARS),
            *projection_rules("cross_attention", "layer.1.EncDecAttention", *_LINEARS),
            *(rule for jax, torch in (_NAMES | inner).items() for rule in module_rules(jax, torch)),
            *(Rule(f"{stack}.relative_bias.table", f"{stack}.{_FIRST}") for stack in ("encoder", "decoder")),
        ),
        tied=dict.fromkeys(("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"), "shared.weight"),
        ignored={"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": "never read"},
    )


def _encoder_family(name: str, feed_forward: dict[str, str]) -> Family:
    """Return the family of a T5 encoder alone, as `_family`."""
    names = {
        "attention_norm": "layer.0.layer_norm",
        "feed_forward_norm": "layer.1.layer_norm",
        "feed_forward.down": "layer.1.DenseReluDense.wo",
        "embed.token": "shared",
        "norm": "encoder.final_layer_norm",
    }
    inner = {f"feed_forward.{own}": f"layer.1.DenseReluDense.{it}" for own, it in feed_forward.items()}
    return Family(
        name=name,
        stacks={"stack.blocks.": "encoder.block.{layer}."},
        rules=(
            *projection_rules("attention", "layer.0.SelfAttention", *_LINEARS),
            *(rule for jax, torch in (names | inner).items() for rule in module_rules(jax, torch)),
            Rule("stack.relative_bias.table", f"encoder.{_FIRST}"),
        ),
        tied={"encoder.embed_tokens.weight": "shared.weight"},
    )


T5 = _family("t5", {"up": "wi"})
"""Family for `EncoderDecoderConfig(norm="rms", norm_epsilon=1e-6, positions="none", relative_bias="t5", attention_scale=1.0,
activation="relu", tied=True, logits_scale=d_model**-0.5, qkv_bias=False, output_bias=False, feed_forward_bias=False)`."""
T5_GATED = _family("t5_gated", {"gate": "wi_0", "up": "wi_1"})
"""Family for T5 1.1 and Flan-T5: T5's configuration with `activation="gelu_tanh", gated=True, tied=False, logits_scale=1.0`."""
MT5 = replace(T5_GATED, name="mt5")
"""Family for T5 1.1's configuration."""

T5_ENCODER = _encoder_family("t5_encoder", {"up": "wi"})
"""Family for `T5EncoderModel`: an `EncoderConfig` with the fields of T5's that it has."""
T5_GATED_ENCODER = _encoder_family("t5_gated_encoder", {"gate": "wi_0", "up": "wi_1"})
"""Family for the encoders of T5 1.1, Flan-T5 and mT5."""


def _per_layer(family: Family, name: str = "umt5") -> Family:
    """Return the family of models with a table of relative position biases in each layer."""
    rule = Rule("relative_bias.table", _FIRST.removeprefix("block.0."))
    return replace(family, name=name, rules=(rule, *family.rules), ignored={})


UMT5 = _per_layer(T5_GATED)
"""Family for T5 1.1's configuration with `relative_per_layer=True`."""
UMT5_ENCODER = _per_layer(T5_GATED_ENCODER, "umt5_encoder")
"""Family for umT5's encoder alone."""

ENDLESS = 2**14
"""Context of a T5 model, which has no longest text: no array depends on it, and memory for attention runs out earlier."""
GATED = "gated-"


def _feed_forward(found: dict[str, Any]) -> dict[str, Any]:
    """Set the activation and `gated` by `feed_forward_proj`, unless newer keys give them."""
    words, act, gated = (found.pop(name) for name in ("feed_forward_proj", "dense_act_fn", "is_gated_act"))
    if act is None:
        act = "gelu_new" if words == "gated-gelu" else words.removeprefix(GATED)
    if act not in ACTIVATIONS:
        raise TypeError(f"feed_forward_proj = {words!r} has the activation {act!r}, which is not known")
    return found | {"activation": ACTIVATIONS[act], "gated": words.startswith(GATED) if gated is None else gated}


def _t5(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set `tied` and the scale of logits: an untied head has its own tensor; transformers before 5 scaled a tied head's
    logits."""
    scaled, tie = found.pop("scale_decoder_outputs"), found.pop("tie_word_embeddings")
    scaled = tie is not False if scaled is None else scaled
    tied = tie is not False and (scaled or "lm_head.weight" not in names)
    return _feed_forward(found) | {"tied": tied, "logits_scale": found["d_model"] ** -0.5 if scaled else 1.0}


def _feed_forward_keys(config: EncoderConfig | EncoderDecoderConfig) -> dict[str, Any]:
    act = next(word for word, own in ACTIVATIONS.items() if own == config.activation)
    words = "gated-gelu" if config.gated and act == "gelu_new" else GATED * config.gated + act
    return {
        "d_kv": config.head_width,
        "feed_forward_proj": words,
        "dense_act_fn": act,
        "is_gated_act": config.gated,
    }


def _undo(config: EncoderDecoderConfig) -> dict[str, Any]:
    more = {"num_decoder_layers": config.decoder.n_layers, "tie_word_embeddings": config.tied}
    return _feed_forward_keys(config) | more


_DECODER = "is_encoder_decoder", "num_decoder_layers", "scale_decoder_outputs", "tie_word_embeddings"
"""Keys that an encoder alone does not read."""


def _encoder_type(kind: ModelType, model: str) -> ModelType:
    """Return the type of folders with the encoder of these models alone."""
    return replace(
        kind,
        config=EncoderConfig,
        family=T5_ENCODER,
        keys={name: key for name, key in kind.keys.items() if name not in _DECODER},
        model=model,
        base=model,
        harmless=kind.harmless | {*_DECODER},
        derive=lambda found, names: _feed_forward(found),
        undo=_feed_forward_keys,
        variant=lambda config: T5_GATED_ENCODER if config.gated else None,
        unwritten=("context",),
    )


_T5 = ModelType(
    name="t5",
    config=EncoderDecoderConfig,
    family=T5,
    keys={
        "vocab_size": Field("vocab_size", 32128),
        "d_model": Field("d_model", 512),
        "d_kv": Field("head_dim", 64),
        "d_ff": Field("d_ff", 2048),
        "num_layers": Field("n_layers", 6),
        "num_decoder_layers": Field("n_decoder_layers", None),
        "num_heads": Field("n_heads", 8),
        "relative_attention_num_buckets": Field("relative_buckets", 32),
        "relative_attention_max_distance": Field("relative_distance", 128),
        "dropout_rate": Field(
            "residual_dropout", 0.1, also=("embedding_dropout", "attention_dropout", "feed_forward_dropout")
        ),  # torch also has dropout after the last norm of a stack
        "layer_norm_epsilon": Field("norm_epsilon", 1e-6),
        "feed_forward_proj": Field("feed_forward_proj", "relu"),
        "dense_act_fn": Field("dense_act_fn", None),
        "is_gated_act": Field("is_gated_act", None),
        "tie_word_embeddings": Field("tie_word_embeddings", None),
        "scale_decoder_outputs": Field("scale_decoder_outputs", None),
        "is_encoder_decoder": Only(True, "its decoder would read no source"),
    },
    fixed={
        "positions": "none",
        "relative_bias": "t5",
        "attention_scale": 1.0,
        "norm": "rms",
        "qkv_bias": False,
        "output_bias": False,
        "feed_forward_bias": False,
        "context": ENDLESS,
    },
    model="T5ForConditionalGeneration",
    base="T5Model",
    prefix="",
    heads={"classification_head.": "classification", "qa_outputs.": "answers in a text", "classifier.": "classification"},
    harmless=frozenset(["classifier_dropout", "initializer_factor", "n_positions"]),
    derive=_t5,
    undo=lambda config: _undo(config) | {"scale_decoder_outputs": config.logits_scale != 1},
    variant=lambda config: T5_GATED if config.gated else None,
    unwritten=("context", "source_context"),
)


T5_TYPE = replace(_T5, encoder=_encoder_type(_T5, "T5EncoderModel"))


def _mt5(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set `tied`: mT5's logits are never scaled."""
    return _feed_forward(found) | {"tied": "lm_head.weight" not in names}


_SIZES: dict[str, Key] = {
    "vocab_size": Field("vocab_size", 250112),
    "d_ff": Field("d_ff", 1024),
    "num_layers": Field("n_layers", 8),
    "num_heads": Field("n_heads", 6),
    "feed_forward_proj": Field("feed_forward_proj", "gated-gelu"),
}
"""Keys whose defaults differ from T5's."""
_MT5 = replace(
    _T5,
    name="mt5",
    family=MT5,
    keys={name: key for name, key in _T5.keys.items() if name not in ("tie_word_embeddings", "scale_decoder_outputs")} | _SIZES,
    model="MT5ForConditionalGeneration",
    base="MT5Model",
    harmless=_T5.harmless | {"tie_word_embeddings"},
    derive=_mt5,
    undo=_undo,
    variant=lambda config: None if config.gated else T5,
)
MT5_TYPE = replace(_MT5, encoder=_encoder_type(_MT5, "MT5EncoderModel"))
_UMT5 = replace(
    _T5,
    name="umt5",
    family=UMT5,
    keys={**_T5.keys, **_SIZES},
    fixed={**_T5.fixed, "relative_per_layer": True},
    model="UMT5ForConditionalGeneration",
    base="UMT5Model",
    variant=lambda config: None if config.gated else _per_layer(T5),
)
UMT5_TYPE = replace(
    _UMT5,
    encoder=replace(
        _encoder_type(_UMT5, "UMT5EncoderModel"),
        family=UMT5_ENCODER,
        variant=lambda config: None if config.gated else _per_layer(T5_ENCODER),
    ),
)
