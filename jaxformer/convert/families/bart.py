"""BART in transformers' format (`BartForConditionalGeneration`), and models with the same names: Marian, Pegasus, mBART,
Blenderbot and Blenderbot-small."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.convert.family import Family, Rule, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, Key, ModelType, Only, Same

_NAMES = {
    "attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
    "feed_forward_norm": "final_layer_norm",
    "embed.token": "model.shared",
    "embed.position": "model.decoder.embed_positions",
    "embed.norm": "model.decoder.layernorm_embedding",
    "source_embed.token": "model.encoder.embed_tokens",
    "source_embed.position": "model.encoder.embed_positions",
    "source_embed.norm": "model.encoder.layernorm_embedding",
    "encoder_norm": "model.encoder.layer_norm",
    "decoder_norm": "model.decoder.layer_norm",
}
_LINEARS = ("q_proj", "k_proj", "v_proj"), "out_proj"
_TABLES = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")

BART = Family(
    name="bart",
    stacks={f"{stack}.blocks.": f"model.{stack}.layers.{{layer}}." for stack in ("encoder", "decoder")},
    rules=(
        *projection_rules("attention", "self_attn", *_LINEARS),
        *projection_rules("cross_attention", "encoder_attn", *_LINEARS),
        *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch)),
        Rule("head.kernel", "lm_head.weight", "transposed"),
        Rule("head.bias", "final_logits_bias", "1 v -> v"),
    ),
    tied=dict.fromkeys(_TABLES, "model.shared.weight"),
    ignored={f"{stack}.version": "the number of a format" for stack in ("encoder", "decoder")},
)
"""Family for `EncoderDecoderConfig(norm_position="post", embedding_norm=True, position_offset=2, tied=True, head_bias=True,
padding_idx=1)`.

torch keeps the head's bias as a buffer, and never trains it: train with `make_optimizer(..., frozen=lambda name, shape: name ==
"head.bias")`.
"""

SINUSOIDS = {f"{stack}.embed_positions.weight": "sinusoids, frozen" for stack in ("encoder", "decoder")}

MARIAN = replace(BART, name="marian", ignored=SINUSOIDS)
"""Family for `EncoderDecoderConfig(norm_position="post", positions="sinusoid_blocks", activation="silu", embedding_scale=True,
tied=True, head_bias=True, padding_idx=...)`, and `source_vocab_size=...` if there are two vocabularies.

torch's table of positions is rounded to float32; `positions=FixedTable(model.model.decoder.embed_positions.weight)` has the
same numbers.
"""
MARIAN_APART = replace(
    MARIAN,
    name="marian_apart",
    rules=(
        *module_rules("source_embed.token", _TABLES[0].removesuffix(".weight")),
        Rule("embed.token.table", _TABLES[1]),
        *MARIAN.rules,
    ),
    tied={"lm_head.weight": _TABLES[1]},
)
"""Family `MARIAN` with separate tables for source and target, as transformers saves two vocabularies."""
MBART = replace(BART, name="mbart")
"""Family for BART's configuration with `norm_position="pre"`."""
PEGASUS = replace(BART, name="pegasus")
"""Family for BART's configuration with `norm_position="pre"`, `position_offset=0` and `embedding_norm=False`; or with
`positions="sinusoid_blocks"`, where the state has no table of them.

torch never trains the table: `make_optimizer(..., frozen=lambda name, shape: name.endswith("position.table"))`.
"""
PEGASUS_SINUSOIDS = replace(PEGASUS, ignored=SINUSOIDS)
"""Family `PEGASUS` with `positions="sinusoid_blocks"`, of which transformers' model holds a table and older files none."""
BLENDERBOT = replace(BART, name="blenderbot")
"""Family for BART's configuration with `norm_position="pre"`, `position_offset=0` and `embedding_norm=False`."""
BLENDERBOT_SMALL = replace(BART, name="blenderbot-small")
"""Family for BART's configuration with `position_offset=0` and `positions_last=True`; `source_embedding_scale` as in the
model."""

SEQ2SEQ_KEYS: dict[str, Key] = {
    "vocab_size": Field("vocab_size", 50265),
    "max_position_embeddings": Field("context", 1024),
    "d_model": Field("d_model", 1024),
    "encoder_layers": Field("n_layers", 12),
    "decoder_layers": Field("n_decoder_layers", 12),
    "encoder_attention_heads": Field("n_heads", 16),
    "decoder_attention_heads": Field("n_decoder_heads", 16),
    "encoder_ffn_dim": Field("d_ff", 4096),
    "decoder_ffn_dim": Same("encoder_ffn_dim"),
    "num_hidden_layers": Same("encoder_layers"),
    "activation_function": Field("activation", "gelu", ACTIVATIONS),
    "dropout": Field("residual_dropout", 0.1, also=("embedding_dropout",)),
    "attention_dropout": Field("attention_dropout", 0.0),
    "activation_dropout": Field("feed_forward_dropout", 0.0),
    "scale_embedding": Field("embedding_scale", False),
    "pad_token_id": Field("padding_idx", 1),
    "is_encoder_decoder": Only(True, "its decoder would read no source"),
    "tie_word_embeddings": Only(True, "the tables of source, target and head would be one, and are several"),
    "add_bias_logits": Only(False, "the logits would lack a bias"),
}
_UNLIKE = {  # keys of older files, with one value in every model type
    "normalize_before": "its norms stand in other places",
    "normalize_embedding": "the norm after the embeddings is not as it says",
    "add_final_layer_norm": "the norm after the stacks is not as it says",
    "static_position_embeddings": "its positions are of the other kind, sinusoids or trained",
}


def older_keys(before: bool, embedding: bool, final: bool, static: bool) -> dict[str, Key]:
    """Return the keys of older files for a model type with these values."""
    return {
        name: Only(value, why) for (name, why), value in zip(_UNLIKE.items(), (before, embedding, final, static), strict=True)
    }


def _biased(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set `head_bias` only if there is a tensor for it: a base model is saved without."""
    return decoder_heads(found) | {"head_bias": "final_logits_bias" in names}


def decoder_heads(found: dict[str, Any]) -> dict[str, Any]:
    """Set the decoder's number of heads, if it is not the encoder's."""
    return found | {"n_decoder_heads": None if found["n_decoder_heads"] == found["n_heads"] else found["n_decoder_heads"]}


def decoder_keys(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Return the keys of the decoder's sizes."""
    return {"decoder_layers": config.decoder.n_layers, "decoder_attention_heads": config.decoder.n_heads}


BART_TYPE = ModelType(
    name="bart",
    config=EncoderDecoderConfig,
    family=BART,
    keys=SEQ2SEQ_KEYS | older_keys(False, True, False, False),
    fixed={"norm_position": "post", "embedding_norm": True, "position_offset": 2, "tied": True},
    model="BartForConditionalGeneration",
    base="BartModel",
    prefix="model.",
    heads={"classification_head.": "classification", "qa_outputs.": "answers in a text"},
    harmless=frozenset(
        ["classif_dropout", "classifier_dropout", "decoder_layerdrop", "encoder_layerdrop", "extra_pos_embeddings"]
    ),
    derive=_biased,
    undo=decoder_keys,
)


def _two_tables(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set both vocabulary sizes: if there are two vocabularies, `vocab_size` in config.json is the source's."""
    shared, target = found.pop("shared"), found.pop("target")
    if not shared:
        found = found | {"source_vocab_size": found["vocab_size"], "vocab_size": target or found["vocab_size"]}
    return _biased(found, names)


def _one_or_two(config: EncoderDecoderConfig) -> dict[str, Any]:
    shared = config.source_vocab_size is None
    sizes = {"vocab_size": config.source_ids, "decoder_vocab_size": config.vocab_size}
    return decoder_keys(config) | sizes | {"share_encoder_decoder_embeddings": shared}


MARIAN_TYPE = replace(
    BART_TYPE,
    name="marian",
    family=MARIAN,
    keys=SEQ2SEQ_KEYS
    | older_keys(False, False, False, True)
    | {
        "vocab_size": Field("vocab_size", 58101),
        "decoder_vocab_size": Field("target", None),
        "share_encoder_decoder_embeddings": Field("shared", True),
        "pad_token_id": Field("padding_idx", 58100),
    },
    fixed={"norm_position": "post", "positions": "sinusoid_blocks", "tied": True},
    model="MarianMTModel",
    base="MarianModel",
    derive=_two_tables,
    undo=_one_or_two,
    variant=lambda config: None if config.source_vocab_size is None else MARIAN_APART,
)

MBART_TYPE = replace(
    BART_TYPE,
    name="mbart",
    family=MBART,
    keys=SEQ2SEQ_KEYS | older_keys(True, True, True, False),
    fixed={"norm_position": "pre", "embedding_norm": True, "position_offset": 2, "tied": True},
    model="MBartForConditionalGeneration",
    base="MBartModel",
)


def _pegasus(found: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Set `positions`: sinusoids, which older files leave out, and newer ones hold as a table."""
    held = "model.encoder.embed_positions.weight" in names
    return _biased(found, names) | {"positions": "learned" if held else "sinusoid_blocks"}


PEGASUS_TYPE = replace(
    BART_TYPE,
    name="pegasus",
    family=PEGASUS,
    variant=lambda config: PEGASUS_SINUSOIDS if config.positions == "sinusoid_blocks" else None,
    keys=SEQ2SEQ_KEYS | older_keys(True, False, True, True) | {"pad_token_id": Field("padding_idx", 0)},
    fixed={"norm_position": "pre", "tied": True},
    model="PegasusForConditionalGeneration",
    base="PegasusModel",
    derive=_pegasus,
)
BLENDERBOT_TYPE = replace(
    BART_TYPE,
    name="blenderbot",
    family=BLENDERBOT,
    keys=SEQ2SEQ_KEYS
    | older_keys(True, False, True, False)
    | {
        "vocab_size": Field("vocab_size", 8008),
        "max_position_embeddings": Field("context", 128),
        "d_model": Field("d_model", 2560),
        "encoder_layers": Field("n_layers", 2),
        "decoder_layers": Field("n_decoder_layers", 24),
        "encoder_attention_heads": Field("n_heads", 32),
        "decoder_attention_heads": Field("n_decoder_heads", 32),
        "encoder_ffn_dim": Field("d_ff", 10240),
        "pad_token_id": Field("padding_idx", 0),
    },
    fixed={"norm_position": "pre", "tied": True},
    model="BlenderbotForConditionalGeneration",
    base="BlenderbotModel",
)
BLENDERBOT_SMALL_TYPE = replace(
    BART_TYPE,
    name="blenderbot-small",
    family=BLENDERBOT_SMALL,
    keys=SEQ2SEQ_KEYS
    | older_keys(False, True, False, False)
    | {
        "max_position_embeddings": Field("context", 512),
        "d_model": Field("d_model", 512),
        "encoder_layers": Field("n_layers", 8),
        "decoder_layers": Field("n_decoder_layers", 8),
        "encoder_ffn_dim": Field("d_ff", 2048),
        "pad_token_id": Field("padding_idx", 0),
        "scale_embedding": Field("source_embedding_scale", False),
    },
    fixed={"norm_position": "post", "embedding_norm": True, "positions_last": True, "tied": True},
    model="BlenderbotSmallForConditionalGeneration",
    base="BlenderbotSmallModel",
    undo=lambda config: decoder_keys(config) | {"scale_embedding": config.source.embedding_scale},
)
