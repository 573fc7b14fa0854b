"""Configurations of the models that mutants are tried on."""

from typing import Any

from jaxformer.config.configuration import FixedTable
from jaxformer.config.dual import AnyModelConfig, DualEncoderConfig
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.config.vision import VisionEncoderConfig
from jaxformer.nn.positions import sinusoid

PLAIN: dict[str, Any] = {"vocab_size": 23, "context": 71, "d_model": 24, "n_layers": 3, "n_heads": 4, "d_ff": 36}
"""Configuration fields with sizes that differ pairwise, and from batch and length."""
SIX_HEADS: dict[str, Any] = {**PLAIN, "n_heads": 6}
BLOCKS: dict[str, Any] = {"d_model": 24, "n_layers": 2, "n_heads": 4, "d_ff": 36}
SQUARE: dict[str, Any] = {"image_size": (12, 12), "patch_size": (4, 4), "channels": 2}
TEXTS: dict[str, Any] = {"vocab_size": 23, "context": 17, "d_model": 18, "n_layers": 1, "n_heads": 3, "d_ff": 30}
"""Configuration fields of an image's and of a text's encoder."""
BARE: dict[str, Any] = {
    "norm": "rms",
    "qkv_bias": False,
    "output_bias": False,
    "feed_forward_bias": False,
    "positions": "none",
}

CONFIGS: dict[str, AnyModelConfig] = {
    "plain": GPTConfig(**PLAIN, head_bias=True),
    "shifted": GPTConfig(**PLAIN, head_bias=True),
    "fused": GPTConfig(**PLAIN, projections="fused", norm="std", norm_position="post", activation="relu"),
    "rich": GPTConfig(
        **PLAIN, n_kv_heads=2, norm="rms", activation="silu", gated=True, positions="sinusoid", embedding_scale=True, tied=True
    ),
    "switched": GPTConfig(
        **PLAIN,
        norm_bias=False,
        activation="quick_gelu",
        padding_idx=0,
        positions=FixedTable(sinusoid(PLAIN["context"], PLAIN["d_model"]) ** 3),
        head_bias=True,
        logits_scale=PLAIN["d_model"] ** -0.5,
    ),
    "seq2seq": EncoderDecoderConfig(
        **PLAIN, n_decoder_layers=2, embedding_norm=True, position_offset=2, embedding_scale=True, tied=True, head_bias=True
    ),
    "separate": EncoderDecoderConfig(
        **PLAIN,
        n_decoder_layers=2,
        n_decoder_heads=6,
        source_vocab_size=PLAIN["vocab_size"],
        norm_position="post",
        positions="sinusoid",
    ),
    "frames": EncoderDecoderConfig(**PLAIN, n_decoder_layers=2, source_features=7, key_bias=False, tied=True),
    "llama": GPTConfig(
        **PLAIN,
        **BARE,
        n_kv_heads=2,
        gated=True,
        activation="silu",
        qk_norm=True,
        head_dim=8,
        rotary="half",
        rotary_base=5e5,
        rotary_scaling="llama3",
        rotary_factor=8.0,
        rotary_original_context=8192,
        rotary_low_frequency_factor=1.0,
        rotary_high_frequency_factor=4.0,
    ),
    "gemma": GPTConfig(
        **PLAIN,
        **BARE,
        norm_position="sandwich",
        norm_unit_offset=True,
        gated=True,
        activation="gelu_tanh",
        attention_scale=256**-0.5,
        attention_softcap=5.0,
        logits_softcap=3.0,
        window=7,
        head_dim=8,
        layer_pattern=("window", "full"),
        rotary="half",
        rotary_base=1e6,
        rotary_window_base=1e4,
        rotary_scaling="linear",
        rotary_factor=8.0,
    ),
    "mixture": GPTConfig(
        **PLAIN,
        **BARE,
        n_experts=6,
        experts_per_token=3,
        router_normalised=True,
        router_scale=2.5,
        shared_d_ff=36,
        shared_gate=True,
        gated=True,
        activation="silu",
        rotary="half",
    ),
    "oss": GPTConfig(
        **PLAIN,
        n_experts=6,
        experts_per_token=3,
        router="top_k_softmax",
        router_bias=True,
        gated=True,
        gate_limit=1.5,
        activation="quick_gelu",
        norm="rms",
        positions="none",
        rotary="half",
        sinks=True,
    ),
    "neox": GPTConfig(
        **PLAIN,
        positions="none",
        parallel_residual=True,
        rotary="interleaved",
        head_dim=16,
        rotary_dim=8,
        rotary_scaling="yarn",
        rotary_factor=4.0,
        rotary_original_context=4096,
    ),
    "cohere": GPTConfig(
        **PLAIN,
        positions="none",
        parallel_residual=True,
        shared_norm=True,
        residual_multiplier=0.6,
        embedding_multiplier=3.0,
        clip_qkv=0.8,
        activation="gelu_bloom",
        rotary="interleaved",
        rotary_pattern=(True, False),
    ),
    "olmo": GPTConfig(
        **PLAIN,
        positions="none",
        norm_affine=False,
        norm_position="output",
        activation="relu_squared",
        rotary="half",
        rotary_scaling="longrope",
        rotary_factor=4.0,
        rotary_original_context=20,
        rotary_short_factors=(1.0, 1.2, 1.5),
        rotary_long_factors=(1.5, 2.0, 4.0),
    ),
    "nanochat": GPTConfig(
        **PLAIN,
        **BARE,
        norm_affine=False,
        embedding_norm=True,
        qk_norm=True,
        qk_norm_affine=False,
        qk_norm_after_rotary=True,
        rotary="half",
        rotary_reversed=True,
        activation="relu_squared",
    ),
    "heads": GPTConfig(
        **PLAIN, rotary="half", qk_norm=True, qk_norm_kind="layer", qk_norm_over="each", qk_norm_after_rotary=True
    ),
    "growing": GPTConfig(
        **PLAIN,
        positions="none",
        rotary="half",
        rotary_scaling="dynamic",
        rotary_factor=4.0,
        rotary_original_context=20,
    ),
    "t5": EncoderDecoderConfig(
        **PLAIN,
        **BARE,
        n_decoder_layers=2,
        relative_bias="t5",
        relative_buckets=12,
        relative_distance=40,
        window=9,
        attention_scale=1.0,
        tied=True,
    ),
    "slopes": EncoderConfig(**SIX_HEADS, positions="none", embedding_width=15, sinks=True, relative_bias="alibi"),
    "encoder": EncoderConfig(**PLAIN, norm_position="post", embedding_norm=True, token_types=2, pooler=True),
    "shared": EncoderConfig(**PLAIN, shared_layers=True, positions="none", relative_bias="alibi"),
    "masked": EncoderConfig(**PLAIN, embedding_width=15, head="masked_lm", head_activation="relu"),
    "labelled": EncoderConfig(
        **PLAIN, pooler=True, pooler_activation="gelu", head="sequence_classification", labels=("one", "two", "three")
    ),
    "vit": VisionEncoderConfig(
        **BLOCKS,
        image_size=(9, 16),
        patch_size=(3, 4),
        channels=2,
        activation="quick_gelu",
        layer_scale=0.5,
        distillation_token=True,
        register_tokens=2,
        mask_token=True,
        pooling="dense",
    ),
    "clip": DualEncoderConfig(
        vision=VisionEncoderConfig(**BLOCKS, **SQUARE, patch_bias=False, embedding_norm=True, pooled_norm=True),
        text=EncoderConfig(**TEXTS, causal=True, activation="quick_gelu"),
        width=15,
        end=7,
    ),
    "siglip": DualEncoderConfig(
        vision=VisionEncoderConfig(**BLOCKS, **SQUARE, class_token=False, pooling="attention", activation="gelu_tanh"),
        text=EncoderConfig(**TEXTS, activation="gelu_tanh"),
        width=24,
        text_pooling="last",
        image_projection=False,
        text_projection_bias=True,
        logit_bias=-10.0,
    ),
}
"""Models that mutants are tried on; in 'shifted', the hidden states have a mean of 100."""
