"""Named model configurations."""

from dataclasses import replace

from jaxformer.config.models import EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.validation.fields import check_choice

QA = GPTConfig(
    vocab_size=5,
    context=6,
    d_model=2,
    n_layers=1,
    n_heads=1,
    d_ff=0,
    norm="none",
    positions="sinusoid",
    qkv_bias=False,
    output_projection=False,
    output_bias=False,
    head_bias=True,
    init="torch",
)
"""Smallest transformer: one head, no norm, no feed-forward layer."""

TINY = GPTConfig(
    vocab_size=65,
    context=8,
    d_model=32,
    n_layers=2,
    n_heads=4,
    d_ff=128,
    activation="relu",
    projections="fused",
    attention_dropout=0.1,
    residual_dropout=0.1,
    head_bias=True,
    init="torch",
)
"""Character model that trains in seconds."""

CPU = GPTConfig(vocab_size=65, context=64, d_model=128, n_layers=4, n_heads=4, d_ff=512, projections="fused", tied=True)
"""Character model for a laptop, of nanoGPT's CPU size."""

GPU = GPTConfig(
    vocab_size=65,
    context=256,
    d_model=384,
    n_layers=6,
    n_heads=6,
    d_ff=1536,
    projections="fused",
    tied=True,
    attention_dropout=0.2,
    residual_dropout=0.2,
    embedding_dropout=0.2,
)
"""Character model for one accelerator, of nanoGPT's GPU size."""

GPT2_SMALL = GPTConfig(
    vocab_size=50257,
    context=1024,
    d_model=768,
    n_layers=12,
    n_heads=12,
    d_ff=3072,
    activation="gelu_tanh",
    projections="fused",
    tied=True,
    attention_dropout=0.1,
    residual_dropout=0.1,
    embedding_dropout=0.1,
)
"""GPT-2 with 124 M parameters (Radford et al. 2019)."""

MIXTRAL_TINY = GPTConfig(
    vocab_size=65,
    context=64,
    d_model=64,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    d_ff=128,
    activation="silu",
    gated=True,
    n_experts=8,
    experts_per_token=2,
    router_normalised=True,
    norm="rms",
    positions="none",
    rotary="half",
    rotary_base=1e6,
    qkv_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    init="normal",
)
"""Small Mixtral (Jiang et al. 2024): eight experts, two for each token."""

QWEN3_MOE_TINY = replace(MIXTRAL_TINY, norm_epsilon=1e-6, d_ff=48, n_experts=64, experts_per_token=8, head_dim=32, qk_norm=True)
"""Small Qwen 3 MoE: 64 experts, eight for each token."""

DEEPSEEK_V3_TINY = replace(
    MIXTRAL_TINY,
    norm_epsilon=1e-6,
    n_layers=3,
    n_kv_heads=None,
    head_dim=24,
    kv_latent=32,
    query_latent=48,
    rotary="interleaved",
    rotary_dim=8,
    rotary_base=10000.0,
    d_ff=48,
    n_experts=16,
    experts_per_token=4,
    router="sigmoid",
    router_correction=True,
    router_scale=2.5,
    expert_groups=4,
    groups_per_token=2,
    group_score="best_two",
    shared_d_ff=48,
    dense_layers=1,
    dense_d_ff=128,
)
"""Small DeepSeek-V3 (DeepSeek-AI 2024): latent attention, and 16 experts in four groups behind a dense layer."""

REVERSE = EncoderDecoderConfig(
    vocab_size=39,
    source_vocab_size=39,
    context=50,
    d_model=32,
    n_layers=3,
    n_heads=4,
    d_ff=64,
    activation="relu",
    norm_position="post",
    positions="sinusoid",
    head_bias=True,
    init="torch",
    embedding_std=0.1,
)
"""Sequence to sequence model for the reversal task: post-norm, separate embeddings, no dropout."""

SHARED = EncoderDecoderConfig(
    vocab_size=65,
    context=64,
    d_model=64,
    n_layers=2,
    n_heads=4,
    d_ff=64,
    activation="relu",
    norm="std",
    norm_epsilon=1e-6,
    positions="sinusoid",
    qkv_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    embedding_dropout=0.1,
    residual_dropout=0.1,
    init="normal",
)
"""Sequence to sequence model with one embedding for source and target, norms by the unbiased deviation, and no bias in any
linear layer."""

BASE = EncoderDecoderConfig(
    vocab_size=37000,
    context=1024,
    d_model=512,
    n_layers=6,
    n_heads=8,
    d_ff=2048,
    activation="relu",
    norm_position="post",
    positions="sinusoid",
    embedding_scale=True,
    tied=True,
    attention_dropout=0.1,
    residual_dropout=0.1,
    feed_forward_dropout=0.1,
    embedding_dropout=0.1,
    init="xavier",
    embedding_std=512**-0.5,
)
"""Base model of Vaswani et al. 2017, table 3."""

BIG = replace(
    BASE,
    d_model=1024,
    n_heads=16,
    d_ff=4096,
    attention_dropout=0.3,
    residual_dropout=0.3,
    feed_forward_dropout=0.3,
    embedding_dropout=0.3,
    embedding_std=1024**-0.5,
)
"""Big model of Vaswani et al. 2017, table 3."""

TRANSLATION = replace(
    BASE,
    vocab_size=8000,
    context=128,
    d_model=256,
    n_layers=3,
    n_heads=8,
    d_ff=512,
    norm_position="pre",
    attention_dropout=0.0,
    residual_dropout=0.2,
    feed_forward_dropout=0.0,
    embedding_dropout=0.2,
    embedding_std=256**-0.5,
)
"""Model for tens of thousands of short sentence pairs, on a laptop: pre-norm, all embeddings tied."""

COPY = replace(BASE, vocab_size=13, context=16, d_model=64, n_layers=2, n_heads=4, d_ff=128, embedding_std=0.125)
"""Small version of `BASE`, for copying a few digits."""

PRESETS: dict[str, ModelConfig] = {
    "qa": QA,
    "gpt.tiny": TINY,
    "gpt.cpu": CPU,
    "gpt.gpu": GPU,
    "gpt2_small": GPT2_SMALL,
    "mixtral.tiny": MIXTRAL_TINY,
    "qwen3_moe.tiny": QWEN3_MOE_TINY,
    "deepseek_v3.tiny": DEEPSEEK_V3_TINY,
    "reverse": REVERSE,
    "shared": SHARED,
    "transformer.copy": COPY,
    "transformer.translation": TRANSLATION,
    "transformer.base": BASE,
    "transformer.big": BIG,
}


def preset(name: str) -> ModelConfig:
    """Return the model configuration of this name; ConfigError for an unknown name."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name]
