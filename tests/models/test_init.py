"""Where parameters start: which distribution each tensor gets, that the draw has it, and how many there are."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import torch_ref.models
from jaxformer.config.initialisers import Initialiser, initialisers
from jaxformer.config.models import EncoderConfig, EncoderDecoderConfig
from jaxformer.config.presets import PRESETS, preset
from jaxformer.errors import ConfigError
from jaxformer.models import GPT, abstract, build, initialiser_table
from jaxformer.pytree import count_parameters, named_leaves
from tests.tiny import quick_key, tiny_config
from torch_ref.models.init import named_tensors

EIGHTH, SIXTEENTH = 1 / math.sqrt(8), 1 / math.sqrt(16)
NORMS = {
    "stack.blocks.attention_norm.scale": ("constant", 1),
    "stack.blocks.attention_norm.bias": ("constant", 0),
    "stack.blocks.feed_forward_norm.scale": ("constant", 1),
    "stack.blocks.feed_forward_norm.bias": ("constant", 0),
    "norm.scale": ("constant", 1),
    "norm.bias": ("constant", 0),
}
TABLES = {
    "torch": {
        "embed.token.table": ("normal", 1),
        "embed.position.table": ("normal", 1),
        "stack.blocks.attention.qkv.kernel": ("uniform", EIGHTH),
        "stack.blocks.attention.qkv.bias": ("uniform", EIGHTH),
        "stack.blocks.attention.out.kernel": ("uniform", EIGHTH),
        "stack.blocks.attention.out.bias": ("uniform", EIGHTH),
        "stack.blocks.feed_forward.up.kernel": ("uniform", EIGHTH),
        "stack.blocks.feed_forward.up.bias": ("uniform", EIGHTH),
        "stack.blocks.feed_forward.down.kernel": ("uniform", SIXTEENTH),
        "stack.blocks.feed_forward.down.bias": ("uniform", SIXTEENTH),
        "head.kernel": ("uniform", EIGHTH),
        "head.bias": ("uniform", EIGHTH),
    },
    "gpt2": {
        "embed.token.table": ("normal", 0.02),
        "embed.position.table": ("normal", 0.02),
        "stack.blocks.attention.qkv.kernel": ("normal", 0.02),
        "stack.blocks.attention.qkv.bias": ("constant", 0),
        "stack.blocks.attention.out.kernel": ("normal", 0.02 / 2),
        "stack.blocks.attention.out.bias": ("constant", 0),
        "stack.blocks.feed_forward.up.kernel": ("normal", 0.02),
        "stack.blocks.feed_forward.up.bias": ("constant", 0),
        "stack.blocks.feed_forward.down.kernel": ("normal", 0.02 / 2),
        "stack.blocks.feed_forward.down.bias": ("constant", 0),
        "head.kernel": ("normal", 0.02),
        "head.bias": ("constant", 0),
    },
    "normal": {
        "embed.token.table": ("normal", 0.02),
        "embed.position.table": ("normal", 0.02),
        "stack.blocks.attention.qkv.kernel": ("normal", 0.02),
        "stack.blocks.attention.qkv.bias": ("constant", 0),
        "stack.blocks.attention.out.kernel": ("normal", 0.02),
        "stack.blocks.attention.out.bias": ("constant", 0),
        "stack.blocks.feed_forward.up.kernel": ("normal", 0.02),
        "stack.blocks.feed_forward.up.bias": ("constant", 0),
        "stack.blocks.feed_forward.down.kernel": ("normal", 0.02),
        "stack.blocks.feed_forward.down.bias": ("constant", 0),
        "head.kernel": ("normal", 0.02),
        "head.bias": ("constant", 0),
    },
    "xavier": {
        "embed.token.table": ("uniform", math.sqrt(6 / (11 + 8))),
        "embed.position.table": ("uniform", math.sqrt(6 / (4 + 8))),
        "stack.blocks.attention.qkv.kernel": ("uniform", math.sqrt(6 / (8 + 24))),
        "stack.blocks.attention.qkv.bias": ("constant", 0),
        "stack.blocks.attention.out.kernel": ("uniform", math.sqrt(6 / (8 + 8))),
        "stack.blocks.attention.out.bias": ("constant", 0),
        "stack.blocks.feed_forward.up.kernel": ("uniform", math.sqrt(6 / (8 + 16))),
        "stack.blocks.feed_forward.up.bias": ("constant", 0),
        "stack.blocks.feed_forward.down.kernel": ("uniform", math.sqrt(6 / (16 + 8))),
        "stack.blocks.feed_forward.down.bias": ("constant", 0),
        "head.kernel": ("uniform", math.sqrt(6 / (8 + 11))),
        "head.bias": ("constant", 0),
    },
}


@cache
def program(**changes):
    """The draw of every tensor, compiled once."""
    config = tiny_config(**changes)
    return jax.jit(lambda key: build(config, rngs=key))


def drawn(seed: int = 0, **changes) -> dict[str, np.ndarray]:
    """Every tensor of a fresh model by name."""
    return {name: np.asarray(leaf) for name, leaf in named_leaves(program(**changes)(quick_key(seed))).items()}


@pytest.mark.parametrize("scheme", TABLES)
def test_table(scheme):
    config = tiny_config(init=scheme, projections="fused", head_bias=True, context=4)
    assert starts(initialiser_table(config)) == {
        name: (kind, pytest.approx(value)) for name, (kind, value) in (NORMS | TABLES[scheme]).items()
    }


SIZES = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 16, "vocab_size": 11, "context": 8}


def starts(table: Mapping[str, Initialiser]) -> dict[str, tuple[str, float]]:
    """Kind and value of every tensor's distribution."""
    return {name: (initialiser.kind, initialiser.value) for name, initialiser in table.items()}


def test_in_a_decoder_gpt2_counts_three_sums_a_layer():
    found = starts(initialiser_table(EncoderDecoderConfig(**SIZES, n_decoder_layers=3, init="gpt2")))
    added = {name: value for name, value in found.items() if name.endswith(("out.kernel", "down.kernel"))}
    assert added == {
        f"{stack}.blocks.{part}.kernel": ("normal", pytest.approx(0.02 / math.sqrt(sums)))
        for stack, parts, sums in (
            ("encoder", ("attention.out", "feed_forward.down"), 4),
            ("decoder", ("attention.out", "cross_attention.out", "feed_forward.down"), 9),
        )
        for part in parts
    }


@pytest.mark.parametrize("scheme", TABLES)
def test_embedding_std_is_of_token_embeddings_alone(scheme):
    config = EncoderDecoderConfig(**SIZES, source_vocab_size=13, init=scheme)
    before, found = (starts(initialiser_table(replace(config, embedding_std=std))) for std in (None, 0.3))
    tables = {"embed.token.table", "source_embed.token.table"}
    assert {name for name in found if found[name] != before[name]} == tables
    assert {found[name] for name in tables} == {("normal", 0.3)}


@pytest.mark.parametrize("scheme", TABLES)
def test_the_row_of_the_padding_id_starts_at_zero(scheme):
    config = EncoderDecoderConfig(**SIZES, source_vocab_size=13, init=scheme, padding_idx=3)
    table = initialiser_table(config)
    tables = {"embed.token.table", "source_embed.token.table"}
    assert {name for name, initialiser in table.items() if initialiser.zero_row is not None} == tables
    assert {str(table[name]).endswith(", row 3 zero") for name in tables} == {True}


def test_a_row_that_starts_at_zero_is_drawn_so():
    ours = drawn(padding_idx=3)["embed.token.table"]
    theirs = torch_ref.models.GPT(tiny_config(padding_idx=3)).embed.token.weight
    for rows in (ours, theirs.detach().numpy()):
        assert np.flatnonzero(~rows.any(1)).tolist() == [3]


@pytest.mark.parametrize("scheme", TABLES)
def test_the_bias_of_a_tied_head_starts_at_zero(scheme):
    found = starts(initialiser_table(tiny_config(init=scheme, tied=True, head_bias=True)))
    assert found["head.bias"] == ("constant", 0)
    assert "head.kernel" not in found


ENCODER = EncoderConfig(**SIZES, token_types=2, pooler=True, embedding_norm=True)


@pytest.mark.parametrize("config", [*PRESETS.values(), ENCODER], ids=[*PRESETS, "encoder"])
def test_both_frameworks_start_every_tensor_from_the_same_distribution(config):
    with torch.device("meta"):
        tensors = named_tensors(torch_ref.models.build(config))
    theirs = starts(initialisers(config, {name: tuple(tensor.shape) for name, tensor in tensors}))
    ours = starts(initialiser_table(config))
    assert {re.sub(r"blocks\.\d+", "blocks", name) for name in theirs} == set(ours)
    assert all(ours[re.sub(r"blocks\.\d+", "blocks", name)] == found for name, found in theirs.items())


@pytest.mark.first(2)
@pytest.mark.parametrize("scheme", TABLES)
def test_draws_follow_the_table(scheme):
    sizes = {"init": scheme, "d_model": 64, "d_ff": 256, "vocab_size": 300, "context": 50, "head_bias": True}
    table = initialiser_table(tiny_config(**sizes))
    for name, leaf in drawn(3, **sizes).items():
        sample, kind, value = leaf.astype(np.float64), table[name].kind, table[name].value
        assert leaf.dtype == np.float32
        if kind == "constant":
            assert (sample == value).all(), name
            continue
        deviation = value / math.sqrt(3) if kind == "uniform" else value
        assert abs(sample.mean()) < 5 * deviation / math.sqrt(sample.size), name
        assert abs(sample.std() / deviation - 1) < 5 / math.sqrt(2 * sample.size), name
        assert np.abs(sample).max() <= value if kind == "uniform" else np.abs(sample).max() > 2 * value, name
        if name.startswith("stack.blocks"):
            assert (sample[0] != sample[1]).mean() > 0.99, name


@pytest.mark.slow
def test_a_draw_depends_on_key_and_name_alone():
    plain, again, other = drawn(), drawn(), drawn(seed=1)
    richer = drawn(gated=True, head_bias=True, norm="rms")
    assert all(np.array_equal(plain[name], richer[name]) for name in set(plain) & set(richer))
    assert all(np.array_equal(plain[name], again[name]) for name in plain)
    random = [name for name in plain if not name.endswith(("bias", "scale"))]
    assert not any((plain[name] == other[name]).any() for name in random)
    assert len({plain[f"stack.blocks.attention.{name}.kernel"].tobytes() for name in ("query", "key", "value", "out")}) == 4


@pytest.mark.parametrize(
    ("name", "parameters", "without_embeddings"),
    [
        ("qa", 37, 27),
        ("gpt.tiny", 29_953, 27_617),
        ("gpt.cpu", 809_856, 793_344),
        ("gpt.gpu", 10_770_816, 10_647_552),
        ("gpt2_small", 124_439_808, 85_056_000),
        ("reverse", 67_911, 65_415),
        ("shared", 140_928, 136_768),
        ("transformer.copy", 168_256, 167_424),
        ("transformer.base", 63_082_496, 44_138_496),
        ("transformer.big", 214_245_376, 176_357_376),
    ],
)
def test_parameter_counts(name, parameters, without_embeddings):
    model = abstract(preset(name))
    assert count_parameters(model) == parameters
    assert count_parameters(model, embeddings=False) == without_embeddings


def test_without_a_bias_a_gpt_has_the_parameters_of_nanogpts():
    """nanoGPT counts 123.59 M, its 1024 positions left out."""
    without = dict.fromkeys(("norm_bias", "qkv_bias", "output_bias", "feed_forward_bias"), False)
    model = abstract(replace(preset("gpt2_small"), vocab_size=50304, **without))
    assert count_parameters(model) - 1024 * 768 == 123_587_328
    assert not [name for name in named_leaves(model) if name.endswith("bias")]


def test_every_leaf_is_a_trainable_float():
    leaves = named_leaves(abstract(tiny_config(positions="sinusoid", attention_dropout=0.1)))
    assert all(np.issubdtype(leaf.dtype, np.floating) for leaf in leaves.values())
    assert not any("position" in name for name in leaves)


def test_nobody_gets_zeros_by_accident():
    for config in (tiny_config(), ENCODER, EncoderDecoderConfig(**SIZES)):
        with pytest.raises(ConfigError) as caught:
            build(config)
        name = type(config).__name__.removesuffix("Config")
        assert str(caught.value) == (
            f"{name}(config) has no random numbers to start from; give rngs=nnx.Rngs(0), or take "
            "jaxformer.abstract(config) for shapes alone"
        )


def test_random_numbers_come_from_flax_or_from_a_key():
    by_key = named_leaves(GPT(tiny_config(), rngs=jax.random.key(7)))
    by_name = named_leaves(GPT(tiny_config(), rngs=nnx.Rngs(params=jax.random.key(7))))
    old = named_leaves(GPT(tiny_config(), rngs=jax.random.PRNGKey(7)))
    rngs = nnx.Rngs(params=jax.random.key(7))
    first, second = (named_leaves(GPT(tiny_config(), rngs=rngs))["head.kernel"] for _ in range(2))
    wanted = named_leaves(GPT(tiny_config(), rngs=nnx.Rngs(params=jax.random.key(7)).params()))
    assert all(np.array_equal(by_key[name], old[name]) for name in by_key)
    assert all(np.array_equal(by_name[name], wanted[name]) for name in by_key)
    assert not (first == second).any()


def test_what_gives_no_random_numbers(untyped):
    for wrong in (0, "key", jnp.zeros(2), np.random.default_rng(0)):
        with pytest.raises(ConfigError, match=r"^GPT: rngs is .*; give nnx\.Rngs\(0\) or jax\.random\.key\(0\)$"):
            GPT(tiny_config(), rngs=wrong)


def test_shapes_alone_are_those_of_the_model():
    shapes, model = (
        named_leaves(abstract(tiny_config())),
        named_leaves(jax.eval_shape(lambda: GPT(tiny_config(), rngs=nnx.Rngs(0)))),
    )
    assert {type(leaf) for leaf in shapes.values()} == {jax.ShapeDtypeStruct}
    assert [(name, leaf.shape, leaf.dtype) for name, leaf in shapes.items()] == [
        (name, leaf.shape, leaf.dtype) for name, leaf in model.items()
    ]


def test_a_twin_is_initialised_too():
    """By torch's own generator, or by one that is given: torch.nn.Linear alone would not follow the configuration."""
    config = tiny_config(init="normal", head_bias=True)
    torch.manual_seed(3)
    models = [torch_ref.models.GPT(config), torch_ref.models.GPT(config)]
    made = [torch_ref.models.build(config, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    first, second = ([model.head.weight.detach() for model in pair] for pair in (models, made))
    assert not torch.equal(*first)
    assert torch.equal(*second)
    assert all(0.01 < head.std() < 0.04 for head in (*first, *second))


@pytest.mark.parametrize("config", [PRESETS["reverse"], {"vocab_size": 65}, None])
def test_a_model_takes_its_own_kind_of_configuration(config):
    """Of the twin, which has no types that are checked before."""
    with pytest.raises(ConfigError) as refused:
        torch_ref.models.GPT(config)
    assert re.fullmatch(rf"config is an? {type(config).__name__}; give a GPTConfig", str(refused.value))
