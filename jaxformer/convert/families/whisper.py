"""Whisper in transformers' format (`WhisperForConditionalGeneration`): a spectrogram is the source."""

from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.convert.family import Family, Rule, module_rules, projection_rules
from jaxformer.convert.model_type import ACTIVATIONS, Field, ModelType, Only, Same

_NAMES = {
    "attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "feed_forward.up": "fc1",
    "feed_forward.down": "fc2",
    "feed_forward_norm": "final_layer_norm",
    "embed.token": "model.decoder.embed_tokens",
    "embed.position": "model.decoder.embed_positions",
    "source_embed.position": "model.encoder.embed_positions",
    "encoder_norm": "model.encoder.layer_norm",
    "decoder_norm": "model.decoder.layer_norm",
}
_LINEARS = ("q_proj", "k_proj", "v_proj"), "out_proj"

_HARMLESS = """classifier_proj_size decoder_layerdrop encoder_layerdrop forced_decoder_ids mask_feature_length
mask_feature_min_masks mask_feature_prob mask_time_length mask_time_min_masks mask_time_prob median_filter_width scale_embedding
use_weighted_layer_sum"""
"""Keys that change no output, or training alone: SpecAugment's without its switch, layers that are dropped."""

WHISPER = Family(
    name="whisper",
    stacks={f"{stack}.blocks.": f"model.{stack}.layers.{{layer}}." for stack in ("encoder", "decoder")},
    rules=(
        *projection_rules("attention", "self_attn", *_LINEARS),
        *projection_rules("cross_attention", "encoder_attn", *_LINEARS),
        *(rule for jax, torch in _NAMES.items() for rule in module_rules(jax, torch)),
        *(Rule(f"stem.{it}.kernel", f"model.encoder.{it}.weight", "o i w -> w i o") for it in ("conv1", "conv2")),
        *(Rule(f"stem.{it}.bias", f"model.encoder.{it}.bias") for it in ("conv1", "conv2")),
    ),
    tied={"proj_out.weight": "model.decoder.embed_tokens.weight"},
)
"""Family for `EncoderDecoderConfig(source_features=80, source_context=1500, key_bias=False, tied=True)`.

torch never trains the encoder's positions: `make_optimizer(..., frozen=lambda name, shape: name ==
"source_embed.position.table")`.
"""

WHISPER_TYPE = ModelType(
    name="whisper",
    config=EncoderDecoderConfig,
    family=WHISPER,
    keys={
        "vocab_size": Field("vocab_size", 51865),
        "num_mel_bins": Field("source_features", 80),
        "max_source_positions": Field("source_context", 1500),
        "max_target_positions": Field("context", 448),
        "d_model": Field("d_model", 384),
        "encoder_layers": Field("n_layers", 4),
        "decoder_layers": Field("n_decoder_layers", 4),
        "encoder_attention_heads": Field("n_heads", 6),
        "decoder_attention_heads": Same("encoder_attention_heads"),
        "encoder_ffn_dim": Field("d_ff", 1536),
        "decoder_ffn_dim": Same("encoder_ffn_dim"),
        "num_hidden_layers": Same("encoder_layers"),
        "activation_function": Field("activation", "gelu", ACTIVATIONS),
        "dropout": Field("residual_dropout", 0.0, also=("embedding_dropout",)),
        "attention_dropout": Field("attention_dropout", 0.0),
        "activation_dropout": Field("feed_forward_dropout", 0.0),
        "pad_token_id": Field("padding_idx", 50256),
        "is_encoder_decoder": Only(True, "its decoder would read no source"),
        "tie_word_embeddings": Only(True, "the logits would be computed by another table"),
        "apply_spec_augment": Only(False, "parts of the spectrogram would be masked in training"),
    },
    fixed={"key_bias": False, "tied": True},
    model="WhisperForConditionalGeneration",
    base="WhisperModel",
    prefix="model.",
    heads={"projector.": "classification of audio", "classifier.": "classification of audio"},
    harmless=frozenset(_HARMLESS.split()),
)
"""Model type of Whisper; transformers reads `scale_embedding`, and scales nothing."""
