"""Models by name."""

from jaxformer.config import GPTConfig, check_choice

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
"""The smallest transformer: one head, no norm, no feed-forward."""

SEED = GPTConfig(
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
"""A character model that trains in seconds."""

CPU = GPTConfig(vocab_size=65, context=64, d_model=128, n_layers=4, n_heads=4, d_ff=512, projections="fused", tied=True)
"""A character model for a laptop, of nanoGPT's CPU size."""

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
"""A character model for one accelerator, of nanoGPT's GPU size."""

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

PRESETS = {"qa": QA, "gpt.seed": SEED, "gpt.cpu": CPU, "gpt.gpu": GPU, "gpt2_small": GPT2_SMALL}


def preset(name: str) -> GPTConfig:
    """The model configuration of that name."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name]
