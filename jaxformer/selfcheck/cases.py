"""What the mutants are tried on: models, trainings and decodings, each without a bug."""

from dataclasses import replace
from typing import Any

from jaxformer.config.fixed_table import FixedTable
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig, ModelConfig
from jaxformer.config.settings import BeamConfig, OptimizerConfig, SamplingConfig, ScheduleConfig
from jaxformer.nn.positions import sinusoid
from jaxformer.selfcheck.decoding_cases import DecodingCase
from jaxformer.selfcheck.training_cases import TrainingCase

BATCH, LENGTH = 5, 66
"""Of the inputs of a model."""


PLAIN: dict[str, Any] = {"vocab_size": 23, "context": 71, "d_model": 24, "n_layers": 3, "n_heads": 4, "d_ff": 36}
"""Sizes differ pairwise, and from batch and length."""

CONFIGS: dict[str, ModelConfig] = {
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
        **PLAIN, n_decoder_layers=2, source_vocab_size=PLAIN["vocab_size"], norm_position="post", positions="sinusoid"
    ),
    "encoder": EncoderConfig(**PLAIN, norm_position="post", embedding_norm=True, token_types=2, pooler=True),
}
"""What the mutants are tried on; in 'shifted', the hidden states have a mean of 100."""

SMALL = GPTConfig(vocab_size=11, context=7, d_model=6, n_layers=1, n_heads=2, d_ff=10)
TRAININGS = {
    "sgd": TrainingCase(
        model=replace(SMALL, residual_dropout=0.2),
        optimizer=OptimizerConfig(name="sgd", learning_rate=0.1, clip_norm=0.1),
        smoothing=0.1,
        spread="others",
        steps=2,
    ),
    "sure": TrainingCase(
        model=replace(SMALL, head_bias=True), optimizer=OptimizerConfig(name="sgd", learning_rate=0.01), sure=14.0, steps=2
    ),
    "adam": TrainingCase(
        model=SMALL,
        optimizer=OptimizerConfig(name="adam", learning_rate=0.1),
        smoothing=0.1,
        spread="others_but_padding",
        ignore_index=0,
        steps=2,
    ),
    "adamw": TrainingCase(
        model=SMALL,
        optimizer=OptimizerConfig(name="adamw", learning_rate=0.01, weight_decay=0.1),
        schedule=ScheduleConfig(name="cosine", warmup=3, last=9),
        steps=2,
    ),
    "noam": TrainingCase(
        model=EncoderDecoderConfig(
            vocab_size=11, context=7, d_model=6, n_layers=1, n_decoder_layers=2, n_heads=2, d_ff=10, embedding_dropout=0.2
        ),
        optimizer=OptimizerConfig(name="adam", learning_rate=1.0, beta2=0.98, epsilon=1e-9),
        schedule=ScheduleConfig(name="noam", warmup=3, d_model=6),
        steps=2,
    ),
}
"""The same for the bugs of losses and optimizers."""
TIERS = {"sure": "B", "adam": "AB"}
"""The tiers of a training with a bug that float32 alone shows; a sure model's loss has few digits even in float64."""

BEAM_WIDTH = 3
WRITER = EncoderDecoderConfig(
    vocab_size=7, context=17, d_model=12, n_layers=2, n_decoder_layers=3, n_heads=3, d_ff=20, norm_position="post"
)
DECODINGS = {
    "greedy": DecodingCase(
        model=WRITER,
        seed=114,
        n_tokens=13,
        start=0,
        eos=1,
        pad=6,
        sampling=SamplingConfig(temperature=0.0, repetition_penalty=1.3),
    ),
    "beam": DecodingCase(
        model=WRITER,
        seed=114,
        n_tokens=13,
        start=0,
        eos=1,
        pad=6,
        beam=BeamConfig(
            width=BEAM_WIDTH,
            n_best=2,
            length_penalty=2.0,
            early_stopping="never",
            no_repeat_ngram=2,
            suppressed=(5,),
            forced=((1, 4), (5, 2)),
        ),
    ),
    "prompts": DecodingCase(
        model=GPTConfig(vocab_size=9, context=16, d_model=12, n_layers=1, n_heads=3, d_ff=20),
        seed=9,
        n_tokens=9,
        eos=(1, 3),
        pad=8,
        beam=BeamConfig(width=BEAM_WIDTH, n_best=2, length_penalty=1.7, min_tokens=3, no_repeat_ngram=2, forced=((-1, 1),)),
    ),
}
"""The same for the bugs of decoding; these weights end some sequences early, and others not."""

CASES = (*CONFIGS, *TRAININGS, *DECODINGS)
