"""A configuration that cannot be built is refused by field and value, in one line, before anything is allocated."""

import ast
import json
import math
import re
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxformer
from jaxformer.config.blocks import ELSEWHERE, Activation, BlockConfig
from jaxformer.config.configuration import from_dict
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.config.presets import PRESETS, preset
from jaxformer.config.rotary import SCALINGS, RotaryEmbedding, YarnScaling
from jaxformer.config.settings import BeamConfig, OptimizerConfig, SamplingConfig, ScheduleConfig
from jaxformer.errors import ConfigError, JaxformerError

MODELS = (GPTConfig, EncoderConfig, EncoderDecoderConfig)
KINDS = (*MODELS, OptimizerConfig, ScheduleConfig, SamplingConfig, BeamConfig)
GOOD = {
    **{kind: {"d_model": 12, "n_layers": 1, "n_heads": 4, "d_ff": 8, "vocab_size": 5, "context": 4} for kind in MODELS},
    OptimizerConfig: {"name": "adam", "learning_rate": 1e-3},
    ScheduleConfig: {},
    SamplingConfig: {},
    BeamConfig: {},
}
SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "window", "vocab_size", "context", "embedding_width")
NO_SIZES = (0, -1, 2.0, True, "4", 2**33, math.nan)
RATES = ("attention_dropout", "residual_dropout", "feed_forward_dropout", "embedding_dropout")
NO_RATES = (-0.5, 1, 1.5, math.nan, math.inf, "0.1", True)
YARN = {"rotary": "half", "rotary_dim": 2, "rotary_scaling": "yarn", "rotary_factor": 2.0, "rotary_original_context": 8}
LLAMA3 = YARN | {"rotary_scaling": "llama3", "rotary_low_frequency_factor": 1.0, "rotary_high_frequency_factor": 4.0}
POSITIVE_OR_NONE = ("attention_scale", "attention_softcap", "clip_qkv", "logits_softcap", "embedding_std")
MULTIPLIERS = ("residual_multiplier", "embedding_multiplier")
LONGROPE = YARN | {"rotary_scaling": "longrope", "rotary_short_factors": (1.5,), "rotary_long_factors": (2.5,)}
FLAGS = (
    "gated",
    "norm_bias",
    "norm_affine",
    "norm_unit_offset",
    "parallel_residual",
    "shared_norm",
    "qk_norm",
    "sinks",
    "rotary_truncate",
    "shared_layers",
    "qkv_bias",
    "output_projection",
    "output_bias",
    "feed_forward_bias",
    "remat",
    "embedding_scale",
    "embedding_norm",
    "embedding_bias",
    "positions_last",
    "relative_per_layer",
    "relative_norm",
)

BAD = [
    *[(GPTConfig, name, value) for name in SIZES for value in NO_SIZES],
    *[(GPTConfig, name, value) for name in RATES for value in NO_RATES],
    *[(GPTConfig, name, value) for name in (*FLAGS, "tied", "head_bias", "first_attention_norm") for value in (1, 0, None)],
    *[(GPTConfig, "position_offset", value) for value in (-1, 2.0, True, None)],
    *[(GPTConfig, "stack_norm", value) for value in (1, 0, "yes")],
    *[(GPTConfig, "padding_idx", value) for value in (-1, 5, 2.0, True, "0")],
    *[(kind, "logits_scale", value) for kind in (GPTConfig, EncoderDecoderConfig) for value in (0, -1, math.nan, None, True)],
    *[(GPTConfig, name, value) for name in POSITIVE_OR_NONE for value in (0, -0.1, math.nan, math.inf, "0.1", True)],
    *[(GPTConfig, name, value) for name in MULTIPLIERS for value in (0, -0.1, math.nan, None, "0.1", True)],
    *[(EncoderConfig, "token_types", value) for value in (-1, 2.0, True, None)],
    *[(EncoderConfig, name, 1) for name in ("pooler", "head_transform", "head_dense_bias", "first_attention_norm")],
    *[(EncoderConfig, "head", value) for value in ("classification", None, True)],
    *[(EncoderConfig, "labels", value) for value in (3, ["a"], "ab", (0, 1))],
    *[(EncoderConfig, "head_dropout", value) for value in NO_RATES],
    *[(EncoderConfig, name, "swish") for name in ("head_activation", "pooler_activation")],
    (EncoderConfig, "head_pooling", "max"),
    *[
        (EncoderDecoderConfig, name, value)
        for name in ("n_decoder_layers", "source_vocab_size", "source_context")
        for value in NO_SIZES
    ],
    *[(EncoderDecoderConfig, name, value) for name in ("tied", "head_bias") for value in (1, 0, None, "yes")],
    *[(EncoderDecoderConfig, "source_embedding_scale", value) for value in (1, 0, "yes")],
    *[(GPTConfig, "d_ff", value) for value in (-1, 1.0, False)],
    *[(GPTConfig, "norm_epsilon", value) for value in (0, -1e-5, math.nan, math.inf)],
    *[(OptimizerConfig, "learning_rate", value) for value in (0, -1, math.nan, math.inf, "1e-3", True)],
    *[(OptimizerConfig, name, value) for name in ("momentum", "beta1", "beta2") for value in (-0.1, 1, math.nan)],
    *[(OptimizerConfig, "epsilon", value) for value in (0, -1)],
    *[(OptimizerConfig, "weight_decay", value) for value in (-0.1, math.nan)],
    *[(OptimizerConfig, "clip_norm", value) for value in (0, -1, math.nan, math.inf)],
    *[(ScheduleConfig, name, value) for name in ("decay_every", "d_model", "last") for value in (0, 1.0, True)],
    *[(ScheduleConfig, name, value) for name in ("decay", "floor") for value in (-1, math.nan)],
    (ScheduleConfig, "warmup", -1),
    *[(SamplingConfig, "temperature", value) for value in (-1, math.nan, math.inf)],
    *[(SamplingConfig, "top_k", value) for value in (-1, 1.0, True)],
    *[(SamplingConfig, "top_p", value) for value in (0, -0.1, 1.1, math.nan)],
    *[(SamplingConfig, "min_p", value) for value in (-0.1, 1.1, math.nan, "0.1", True)],
    *[(SamplingConfig, "repetition_penalty", value) for value in (0, -1, math.nan, math.inf, True)],
    *[(BeamConfig, name, value) for name in ("width", "n_best") for value in NO_SIZES],
    *[(BeamConfig, "no_repeat_ngram", value) for value in (-1, 2.0, True)],
    *[(BeamConfig, "length_penalty", value) for value in (-11, math.nan, math.inf, "1", True)],
    *[(BeamConfig, "early_stopping", value) for value in (1, 0, None, "newer")],
    *[(SamplingConfig, "min_tokens", value) for value in (-1, 1.0)],
]


BAD_WITH = [
    *[(YARN, "rotary_dim", value) for value in (0, 4, 2.0, True, "2")],
    *[
        (YARN, name, value)
        for name in ("rotary_factor", "rotary_beta_fast", "rotary_beta_slow")
        for value in (0, math.nan, "1")
    ],
    *[(YARN, "rotary_attention_factor", value) for value in (0, -1, math.inf)],
    *[(YARN, "rotary_original_context", value) for value in (0, 2.5, True)],
    *[(YARN | {"window": 3}, name, v) for name in ("rotary_base", "rotary_window_base") for v in (1, 0.5, -3, math.nan, "1")],
    *[(LLAMA3, f"rotary_{name}_frequency_factor", value) for name in ("low", "high") for value in (0, -1, "4", math.nan)],
    *[(LONGROPE, f"rotary_{name}_factors", value) for name in ("short", "long") for value in ((1.0, 2.0), (), [1.5], 1.5)],
    *[(YARN, "rotary_pattern", value) for value in (True, (), (True,), (True, 1), [True, False], ("yes", "no"))],
    *[({"relative_bias": "t5"}, "relative_buckets", value) for value in (0, 2, 3.0, True, 7)],
    *[({"relative_bias": "t5"}, "relative_distance", value) for value in (0, 16, 20.0, True)],
    *[({"window": 3}, "layer_pattern", value) for value in (("window", "fall"), "window", (), ("full",), 3, ["window"])],
]
"""The settings that a field needs; the field, and a value that it cannot have."""
UNREAD = {
    "rotary_dim": 2,
    "rotary_pattern": (True, False),
    "rotary_short_factors": (1.5,),
    "rotary_long_factors": (2.5,),
    "rotary_base": 5e5,
    "rotary_scaling": "linear",
    "rotary_factor": 2.0,
    "rotary_original_context": 8,
    "rotary_low_frequency_factor": 1.0,
    "rotary_high_frequency_factor": 4.0,
    "rotary_beta_fast": 16.0,
    "rotary_beta_slow": 2.0,
    "rotary_truncate": False,
    "rotary_attention_factor": 1.2,
    "relative_buckets": 16,
    "relative_distance": 64,
}


def shown(value: object) -> str:
    """How a message writes a value: as Python does, or shortened where it is a plain number."""
    return f"(?:{re.escape(repr(value))}" + (f"|{value:g})" if isinstance(value, int | float) else ")")


def refused(kind: type, **changes: object) -> str:
    """The message that refuses the good configuration with these changes: one line, and no other kind of error."""
    with pytest.raises(ConfigError) as caught:
        kind(**(GOOD[kind] | changes))
    message = str(caught.value)
    assert "\n" not in message
    assert isinstance(caught.value, JaxformerError)
    assert isinstance(caught.value, ValueError)
    return message


@pytest.mark.parametrize(("kind", "name", "value"), BAD, ids=lambda x: getattr(x, "__name__", repr(x)))
def test_bad_value_is_named(kind, name, value):
    assert re.match(rf"{name} = {shown(value)} ", refused(kind, **{name: value}))


@pytest.mark.parametrize(("given", "name", "value"), BAD_WITH, ids=lambda x: repr(x) if not isinstance(x, dict) else "")
def test_bad_value_of_a_field_that_is_read_is_named(given, name, value):
    GPTConfig(**(GOOD[GPTConfig] | given))
    assert re.match(rf"{name} = {shown(value)} ", refused(GPTConfig, **(given | {name: value})))


@pytest.mark.parametrize(("name", "value"), UNREAD.items())
def test_a_field_that_nothing_reads_is_refused(name, value):
    said = refused(GPTConfig, **{name: value})
    assert re.match(
        rf"{name} = {re.escape(repr(value))} is not read with (rotary|rotary_scaling|relative_bias) = 'none'; set ", said
    )


@pytest.mark.parametrize("scaling", [YARN, LLAMA3, LONGROPE], ids=lambda given: given["rotary_scaling"])
def test_a_scaling_without_its_numbers_is_refused(scaling):
    for name in [name for name in scaling if name not in ("rotary", "rotary_dim", "rotary_scaling")]:
        said = f"rotary_scaling = {scaling['rotary_scaling']!r} needs {name}; the model's own configuration has it"
        assert refused(GPTConfig, **(scaling | {name: None})) == said


@pytest.mark.parametrize(
    ("kind", "name", "near", "meant"),
    [
        (GPTConfig, "activation", "gleu", "gelu"),
        (GPTConfig, "norm", "layr", "layer"),
        (GPTConfig, "norm_position", "pree", "pre"),
        (GPTConfig, "projections", "fuse", "fused"),
        (GPTConfig, "layers", "unroled", "unrolled"),
        (GPTConfig, "rotary", "halve", "half"),
        (GPTConfig, "rotary_scaling", "lama3", "llama3"),
        (GPTConfig, "relative_bias", "alibie", "alibi"),
        (GPTConfig, "positions", "sinusiod", "sinusoid"),
        (EncoderDecoderConfig, "source_positions", "sinusiod", "sinusoid"),
        (GPTConfig, "init", "gpt-2", "gpt2"),
        (OptimizerConfig, "name", "adamww", "adamw"),
        (ScheduleConfig, "name", "cosin", "cosine"),
    ],
)
def test_unknown_word_is_answered_with_the_nearest(kind, name, near, meant):
    assert refused(kind, **{name: near}) == f"{name} = {near!r} is not known; did you mean {meant!r}?"
    assert re.search(rf"{name} = 'zzz' is not known; choose one of .*\b{meant}\b", refused(kind, **{name: "zzz"}))


@pytest.mark.parametrize(("name", "here"), ELSEWHERE.items())
def test_an_activations_other_name_is_answered_with_the_one_here(name, here):
    assert refused(GPTConfig, activation=name) == f"activation = {name!r} is not known; here it is {here}"
    assert here.split("'")[1] in get_args(Activation)


@pytest.mark.parametrize(
    ("kind", "field", "said"),
    [
        (GPTConfig, "n_haeds", "GPTConfig has no field n_haeds; did you mean n_heads?"),
        (
            EncoderDecoderConfig,
            "source_vocab",
            "EncoderDecoderConfig has no field source_vocab; did you mean source_vocab_size?",
        ),
        (
            OptimizerConfig,
            "lr",
            f"OptimizerConfig has no field lr; it has {', '.join(field.name for field in fields(OptimizerConfig))}",
        ),
    ],
)
def test_an_unknown_field_is_answered_with_the_nearest(kind, field, said):
    assert refused(kind, **{field: 3}) == said


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        (
            EncoderDecoderConfig,
            {"source_vocab_size": 4, "padding_idx": 4},
            "padding_idx = 4 is out of range; give an integer from 0",
        ),
        (EncoderConfig, {"head": "token_classification"}, "head = 'token_classification' needs labels; give their names, as"),
        (EncoderConfig, {"labels": ("a",)}, "labels = ('a',) is not read with head = 'none'; set head = 'sequence_classif"),
        (EncoderConfig, {"head_activation": "relu"}, "head_activation = 'relu' is not read with head_transform = False; set"),
        (EncoderConfig, {"head_dense_bias": False}, "head_dense_bias = False is not read with head_transform = False; set"),
        (EncoderConfig, {"head_transform": True}, "head_transform = True is not read with head = 'none'; set head = 'sequence"),
        (GPTConfig, {"head_activation": "relu"}, "head_activation = 'relu' is not read with head_transform = False; set"),
        (EncoderConfig, {"pooler_activation": "relu"}, "pooler_activation = 'relu' is not read with pooler = False; set poo"),
        (EncoderConfig, {"head_pooling": "mean"}, "head_pooling = 'mean' is not read with head = 'none'; set head = 'seque"),
        (
            EncoderConfig,
            {"head_pooling": "mean", "head": "sequence_classification", "labels": ("a",), "pooler": True},
            "head_pooling = 'mean' is not read with pooler = True; leave one of them out",
        ),
        (EncoderConfig, {"head_dropout": 0.1, "head": "masked_lm"}, "head_dropout = 0.1 is not read with head = 'masked_lm'; "),
        (GPTConfig, {"n_heads": 5}, "n_heads = 5 does not divide d_model = 12; choose one of 1, 2, 3, 4, 6, 12"),
        (GPTConfig, {"n_kv_heads": 3}, "n_kv_heads = 3 does not divide n_heads = 4; choose one of 1, 2, 4"),
        (GPTConfig, {"output_projection": False}, "output_bias = True needs output_projection = True; set output_bias = False"),
        (
            GPTConfig,
            {"head_dim": 5, "output_projection": False, "output_bias": False},
            "head_dim = 5 makes heads 20 wide in all, which output_projection = False adds to d_model = 12; set",
        ),
        (GPTConfig, {"embedding_norm": True, "norm": "none"}, "embedding_norm = True needs a norm"),
        (
            EncoderConfig,
            {"first_attention_norm": False, "norm_position": "post"},
            "first_attention_norm = False does not go with norm_position = 'post'; set norm_position = 'pre', or leave it out",
        ),
        (GPTConfig, {"first_attention_norm": False, "n_experts": 2}, "first_attention_norm = False does not go with n_experts"),
        (
            GPTConfig,
            {"first_attention_norm": False, "shared_layers": True},
            "shared_layers = True makes one block of all layers",
        ),
        (GPTConfig, {"relative_norm": True}, "relative_norm = True is not read with relative_bias = 'none'; set relative_bias"),
        (
            GPTConfig,
            {"relative_bias": "disentangled", "qk_norm": True},
            "qk_norm = True has no place in disentangled",
        ),
        (
            GPTConfig,
            {"relative_bias": "disentangled", "n_kv_heads": 1},
            "n_kv_heads = 1 has no place in disentangled",
        ),
        (GPTConfig, {"relative_per_layer": True}, "relative_per_layer = True is not read with relative_bias = 'none'; set rel"),
        (
            EncoderConfig,
            {"relative_per_layer": True, "relative_bias": "t5", "shared_layers": True},
            "shared_layers = True makes one block of all layers, and relative_per_layer a table for each",
        ),
        (EncoderConfig, {"first_attention_norm": False, "relative_bias": "t5"}, "relative_bias = 't5' has one table for all"),
        (GPTConfig, {"shared_norm": True}, "shared_norm = True is not read with parallel_residual = False; set parallel"),
        (GPTConfig, {"norm_bias": False, "norm_affine": False}, "norm_bias = False is not read with norm_affine = False; set"),
        (GPTConfig, {"norm_affine": False, "norm": "none"}, "norm_affine = False is not read with norm = 'none'; set norm"),
        (
            GPTConfig,
            {"norm_affine": False, "norm_unit_offset": True},
            "norm_unit_offset = True is not read with norm_affine = False, as no norm has a gain",
        ),
        (
            GPTConfig,
            YARN | {"rotary_scaling": "dynamic"},
            "rotary_scaling = 'dynamic' needs 4 rotated units of a head, and there are 2",
        ),
        (EncoderDecoderConfig, LONGROPE, "rotary_scaling = 'longrope' is for models of one stack; give 'linear' or 'yarn'"),
        (GPTConfig, {"norm_unit_offset": True, "norm": "none"}, "norm_unit_offset = True needs a norm; set norm = 'rms'"),
        (
            GPTConfig,
            {"parallel_residual": True, "norm_position": "post"},
            "parallel_residual = True needs norm_position = 'pre', and it is 'post'",
        ),
        (
            GPTConfig,
            {"parallel_residual": True, "d_ff": 0},
            "parallel_residual = True needs a feed-forward layer, and d_ff = 0",
        ),
        (EncoderDecoderConfig, {"parallel_residual": True}, "parallel_residual = True has no place for cross-attention; set"),
        (
            GPTConfig,
            {"rotary": "half"},
            "rotary = 'half' rotates pairs of units, and a head is 3 wide; give an even rotary_dim",
        ),
        (GPTConfig, YARN | {"head_dim": 8, "rotary_dim": 3}, "rotary_dim = 3 is odd; units are rotated in pairs, give an even"),
        (GPTConfig, {"layer_pattern": ("window",)}, "layer_pattern = ('window',) needs a window; give window = 4096"),
        (GPTConfig, YARN | {"rotary_window_base": 100.0}, "rotary_window_base = 100.0 needs a window; give window = 4096"),
        (
            GPTConfig,
            LLAMA3 | {"rotary_high_frequency_factor": 1.0},
            "rotary_low_frequency_factor = 1.0 is not below rotary_high_frequency_factor = 1.0; give a smaller one",
        ),
        (GPTConfig, YARN | {"rotary_beta_slow": 33.0}, "rotary_beta_slow = 33.0 is not below rotary_beta_fast = 32.0; give a"),
        (
            GPTConfig,
            {"embedding_bias": False},
            "embedding_bias = False is not read with embedding_width = None; set embedding_",
        ),
        (GPTConfig, {"positions_last": True}, "positions_last = True needs positions, and an embedding_norm or an embedding_w"),
        (GPTConfig, {"positions_last": True, "embedding_norm": True, "positions": "none"}, "positions_last = True needs posit"),
        (ScheduleConfig, {"name": "noam"}, "warmup = 0 is out of range; give an integer from 1"),
        (ScheduleConfig, {"name": "cosine", "warmup": 9, "last": 9}, "last = 9 does not come after warmup = 9"),
        (ScheduleConfig, {"name": "cosine", "warmup": 9, "last": 8}, "last = 8 does not come after warmup = 9"),
        (BeamConfig, {"width": 2, "n_best": 3}, "n_best = 3 is more than width = 2; give a number up to it"),
        (BeamConfig, {"suppressed": (1, -1)}, "suppressed = -1 is out of range; give an integer from 0"),
        (BeamConfig, {"suppressed": (1.0,)}, "suppressed = 1.0 is not a whole number; give an integer of at least 0"),
        (BeamConfig, {"suppressed": 3}, "suppressed = 3 is not a tuple; give one, () for none"),
        (BeamConfig, {"suppressed": [3]}, "suppressed = [3] is not a tuple"),
        (BeamConfig, {"forced": (3,)}, "forced = 3 is not a pair; give (place, token)"),
        (BeamConfig, {"forced": ((1, 2, 3),)}, "forced = (1, 2, 3) is not a pair; give (place, token)"),
        (BeamConfig, {"forced": ((0, -2),)}, "forced = -2 is out of range; give an integer from 0"),
        (SamplingConfig, {"forced": ((-2, 3),)}, "forced = -2 is out of range; give an integer from -1"),
        (BeamConfig, {"forced": 3}, "forced = 3 is not a tuple"),
        (BeamConfig, {"forced": ((0, 3), (0, 4))}, "forced = ((0, 3), (0, 4)) names a place twice; give one token to each"),
        (
            BeamConfig,
            {"forced": ((0, 3),), "suppressed": (3,)},
            "forced = ((0, 3),) names token 3, which is suppressed; choose one",
        ),
        (BeamConfig, {"length_penalty": 1e3}, "length_penalty = 1000 is out of range; give a number in [-10, 10]"),
        (
            SamplingConfig,
            {"repetition_penalty": 1e-38},
            "repetition_penalty = 1e-38 is out of range; give a number in [0.1, 10]",
        ),
    ],
)
def test_values_that_do_not_fit_together(kind, changes, said):
    assert refused(kind, **changes).startswith(said)


def test_the_edges_are_allowed():
    GPTConfig(**(GOOD[GPTConfig] | {"d_ff": 0, "attention_dropout": 0, "n_kv_heads": 1, "norm_epsilon": 1e-30}))
    GPTConfig(**(GOOD[GPTConfig] | {"tied": True, "embedding_width": 12, "window": 1, "norm": "none", "qk_norm": True}))
    GPTConfig(**(GOOD[GPTConfig] | {"relative_bias": "t5", "relative_buckets": 4, "relative_distance": 3}))
    assert GPTConfig(**(GOOD[GPTConfig] | {"n_heads": 5, "head_dim": 1})).head_width == 1
    GPTConfig(**(GOOD[GPTConfig] | {"head_dim": 3, "output_projection": False, "output_bias": False}))
    ScheduleConfig(name="cosine", warmup=9, last=10, floor=0)
    SamplingConfig(temperature=0, top_k=0, top_p=1, min_p=1, repetition_penalty=0.1)
    BeamConfig(width=1, n_best=1, length_penalty=-10, early_stopping="never", suppressed=(1,), forced=((-1, 0),))
    EncoderConfig(**(GOOD[EncoderConfig] | {"token_types": 0, "position_offset": 0}))
    EncoderDecoderConfig(**(GOOD[EncoderDecoderConfig] | {"n_decoder_layers": 1, "source_vocab_size": 1}))


def test_what_an_encoder_decoder_leaves_open():
    config = EncoderDecoderConfig(**GOOD[EncoderDecoderConfig])
    assert (config.decoder.n_layers, config.source_ids) == (config.n_layers, config.vocab_size)
    config = EncoderDecoderConfig(**(GOOD[EncoderDecoderConfig] | {"n_decoder_layers": 3, "source_vocab_size": 7}))
    assert (config.n_layers, config.decoder.n_layers, config.source_ids) == (1, 3, 7)
    assert config.source is config
    source = replace(config, source_context=9, source_positions="none").source
    assert (source.context, source.positions, source.source) == (9, "none", source)


def test_a_pattern_repeats_over_the_layers():
    config = GPTConfig(**(GOOD[GPTConfig] | {"n_layers": 5, "window": 3, "layer_pattern": ("window", "window", "full")}))
    assert config.windowed_layers == (True, True, False, True, True)
    assert replace(config, layer_pattern=None).windowed_layers is None
    assert from_dict(GPTConfig, json.loads(json.dumps(asdict(config)))) == config


def test_a_configuration_cannot_be_changed():
    with pytest.raises(AttributeError):
        preset("qa").d_model = 3  # type: ignore[misc]


def test_unknown_preset():
    with pytest.raises(ConfigError, match=r"^preset = 'gpt.tny' is not known; did you mean 'gpt.tiny'\?$"):
        preset("gpt.tny")
    assert all(preset(name) is config for name, config in PRESETS.items())


VALUES = st.one_of(
    st.integers(-3, 16),
    st.sampled_from([2**31, 2**33, -(2**70), 10**30, 0.5, 1.0, math.nan, math.inf, -math.inf, 1e-45, True, False, None]),
    st.floats(),
    st.sampled_from(["gelu", "pre", "fused", "cosine", "adam", "noam", "", "naïve\n", "none", "std"]),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-1, 3), st.tuples(st.integers(-1, 3), st.floats())), max_size=2).map(tuple),
)


@st.composite
def changed(draw):
    """A good configuration with some fields set to whatever comes."""
    kind = draw(st.sampled_from(KINDS))
    return kind, draw(st.dictionaries(st.sampled_from([field.name for field in fields(kind)]), VALUES, min_size=1, max_size=5))


def message(kind: type, changes: dict[str, object]) -> str:
    """Why a configuration is refused; empty where it is built."""
    try:
        kind(**(GOOD[kind] | changes))
    except ConfigError as error:
        return str(error) or "refused without a word"
    return ""


@settings(max_examples=500, deadline=None, database=None)
@given(changed())
def test_any_configuration_builds_or_is_refused_by_name(kind_and_changes):
    kind, changes = kind_and_changes
    said = message(kind, changes)
    assert said.split(" = ")[0] in {field.name for field in fields(kind)} | {""}
    assert len(said.splitlines()) <= 1


def attributes_read(path: Path) -> set[str]:
    """Names read as attributes, configurations' own validation left out."""
    tree = ast.parse(path.read_text("utf-8"))
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__post_init__"]
    validation = {inner for check in checks for inner in ast.walk(check)}
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node not in validation}


def names_read(path: Path) -> set[str]:
    """The same, and where fields are handed on by name, the parameters that take them."""
    text = path.read_text("utf-8")
    taken = {node.arg for node in ast.walk(ast.parse(text)) if isinstance(node, ast.arg)} if "vars(" in text else set()
    return attributes_read(path) | taken


def test_every_field_is_read_somewhere():
    read = set().union(*(names_read(path) for path in Path(jaxformer.__file__).parent.rglob("*.py")))
    read |= {f"rotary_{field.name}" for scaling in SCALINGS.values() for field in fields(scaling)}
    asked = {f"{kind.__name__}.{field.name}": field.name for kind in (BlockConfig, *KINDS) for field in fields(kind)}
    assert not [field for field, name in asked.items() if name not in read]


def test_rotary_positions_are_a_value():
    """Fields that are read stand in it, and no others; saved configurations hold the flat fields."""
    plain = GOOD[GPTConfig]
    config = GPTConfig(**plain, **YARN, rotary_truncate=False)
    assert config.rotary_embedding == RotaryEmbedding(
        False, 2, 10000.0, None, YarnScaling(2.0, 8, 32.0, 1.0, False, None), False
    )
    assert GPTConfig(**plain).rotary_embedding is None
    turned = GPTConfig(**(plain | {"n_heads": 2}), rotary="interleaved", rotary_base=500.0)
    assert turned.rotary_embedding == RotaryEmbedding(True, 6, 500.0, None, None, False)
    saved = json.loads(json.dumps(asdict(config)))
    assert saved["rotary_factor"] == 2.0
    assert from_dict(GPTConfig, saved) == config
