"""A configuration that cannot be built is refused by field and value, in one line, before anything is allocated."""

import ast
import math
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxformer
from jaxformer.config.models import ELSEWHERE, Activation, BlockConfig, EncoderConfig, EncoderDecoderConfig, GPTConfig
from jaxformer.config.presets import PRESETS, preset
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
SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "vocab_size", "context")
NO_SIZES = (0, -1, 2.0, True, "4", 2**33, math.nan)
RATES = ("attention_dropout", "residual_dropout", "feed_forward_dropout", "embedding_dropout")
NO_RATES = (-0.5, 1, 1.5, math.nan, math.inf, "0.1", True)
FLAGS = (
    "gated",
    "norm_bias",
    "qkv_bias",
    "output_projection",
    "output_bias",
    "feed_forward_bias",
    "remat",
    "embedding_scale",
    "embedding_norm",
)

BAD = [
    *[(GPTConfig, name, value) for name in SIZES for value in NO_SIZES],
    *[(GPTConfig, name, value) for name in RATES for value in NO_RATES],
    *[(GPTConfig, name, value) for name in (*FLAGS, "tied", "head_bias") for value in (1, 0, None, "yes")],
    *[(GPTConfig, "position_offset", value) for value in (-1, 2.0, True, None)],
    *[(GPTConfig, "stack_norm", value) for value in (1, 0, "yes")],
    *[(GPTConfig, "padding_idx", value) for value in (-1, 5, 2.0, True, "0")],
    *[(kind, "logits_scale", value) for kind in (GPTConfig, EncoderDecoderConfig) for value in (0, -1, math.nan, None, True)],
    *[(GPTConfig, "embedding_std", value) for value in (0, -0.1, math.nan, math.inf, "0.1", True)],
    *[(EncoderConfig, "token_types", value) for value in (-1, 2.0, True, None)],
    *[(EncoderConfig, "pooler", value) for value in (1, 0, None, "yes")],
    *[
        (EncoderDecoderConfig, name, value)
        for name in ("n_decoder_layers", "source_vocab_size", "source_context")
        for value in NO_SIZES
    ],
    *[(EncoderDecoderConfig, name, value) for name in ("tied", "head_bias") for value in (1, 0, None, "yes")],
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


@pytest.mark.parametrize(
    ("kind", "name", "near", "meant"),
    [
        (GPTConfig, "activation", "gleu", "gelu"),
        (GPTConfig, "norm", "layr", "layer"),
        (GPTConfig, "norm_position", "pree", "pre"),
        (GPTConfig, "projections", "fuse", "fused"),
        (GPTConfig, "layers", "unroled", "unrolled"),
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
        (GPTConfig, {"n_heads": 5}, "n_heads = 5 does not divide d_model = 12; choose one of 1, 2, 3, 4, 6, 12"),
        (GPTConfig, {"n_kv_heads": 3}, "n_kv_heads = 3 does not divide n_heads = 4; choose one of 1, 2, 4"),
        (GPTConfig, {"output_projection": False}, "output_bias = True needs output_projection = True; set output_bias = False"),
        (
            GPTConfig,
            {"head_dim": 5, "output_projection": False, "output_bias": False},
            "head_dim = 5 makes heads 20 wide in all, which output_projection = False adds to d_model = 12; set",
        ),
        (GPTConfig, {"embedding_norm": True, "norm": "none"}, "embedding_norm = True needs a norm"),
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
    asked = {f"{kind.__name__}.{field.name}": field.name for kind in (BlockConfig, *KINDS) for field in fields(kind)}
    assert not [field for field, name in asked.items() if name not in read]
