"""Whole models with the switches of modern ones: logits, gradients, the cache and what generation writes.

Texts are longer than every window and go beyond the context before a scaling of rotary positions.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import torch_ref.models as torch_models
from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.config.settings import BeamConfig
from jaxformer.decoding import generate, generate_beam
from jaxformer.errors import InputError
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.models import GPT, abstract
from jaxformer.nn.attention import MultiHeadAttention
from jaxformer.nn.cache import empty_cache
from jaxformer.nn.stack import Stack
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.runs.load_weights import Candidate
from parity_tests.support.helpers import (
    B,
    D,
    H,
    K,
    V,
    block_config,
    checks,
    encoder_config,
    gpt_config,
    noise,
    run_check,
    seq2seq_config,
    twins,
    usually,
)
from torch_ref.decoding.generate import generate as torch_generate
from torch_ref.decoding.generate import generate_beam as torch_generate_beam
from torch_ref.nn.attention import MultiHeadAttention as TorchAttention
from torch_ref.nn.cache import empty_cache as torch_cache
from torch_ref.nn.stack import Stack as TorchStack

CONTEXT = 23
BARE = {"norm": "rms", "qkv_bias": False, "output_bias": False, "feed_forward_bias": False, "positions": "none"}
LLAMA3 = {"rotary_scaling": "llama3", "rotary_factor": 8.0, "rotary_original_context": 9}
LLAMA3 |= {"rotary_low_frequency_factor": 1.0, "rotary_high_frequency_factor": 4.0}
SCALED = BARE | {"norm_position": "sandwich", "qk_norm": True, "value_norm": True, "attention_scale": 0.2}
SCALED |= {"output_scale": True, "window": 5, "full_head_dim": 8, "full_kv_heads": 1, "rotary": "half"}
SCALED |= {"rotary_base": 1e4, "rotary_window_base": 30.0}
SCALED |= {"rotary_scaling": "proportional", "rotary_factor": 2.0, "rotary_pairs": 3, "n_kv_heads": K, "layers": "rolled"}
SCALED |= {"gated": True, "activation": "gelu_tanh"}
GPTS = {
    "llama": gpt_config(
        context=CONTEXT, **BARE, rotary="half", **LLAMA3, n_kv_heads=K, gated=True, activation="silu", layers="rolled"
    ),
    "gemma": gpt_config(
        context=CONTEXT,
        **BARE,
        norm_position="sandwich",
        norm_unit_offset=True,
        qk_norm=True,
        attention_scale=0.3,
        attention_softcap=2.0,
        logits_softcap=1.5,
        window=6,
        layer_pattern=("window", "full"),
        rotary="half",
        rotary_base=1e6,
        rotary_window_base=1e3,
        rotary_scaling="linear",
        rotary_factor=4.0,
        n_kv_heads=K,
        gated=True,
        activation="gelu_tanh",
        embedding_scale=True,
        tied=True,
        layers="rolled",
    ),
    "neox": gpt_config(
        context=CONTEXT,
        positions="none",
        parallel_residual=True,
        projections="fused",
        qk_norm=True,
        rotary="half",
        rotary_dim=H - 2,
        rotary_scaling="yarn",
        rotary_factor=4.0,
        rotary_original_context=13,
        rotary_beta_fast=1.5,
        rotary_beta_slow=0.5,
        layers="unrolled",
    ),
    "interleaved, with a window in all layers": gpt_config(
        context=CONTEXT, positions="none", rotary="interleaved", window=5, sinks=True, layers="rolled", remat=True
    ),
    "no norm before the first attention": gpt_config(
        context=CONTEXT,
        norm_position="sandwich",
        first_attention_norm=False,
        embedding_norm=True,
        embedding_width=10,
        embedding_bias=False,
        positions_last=True,
        tied=True,
        head_transform=True,
        head_activation="silu",
        head_dense_bias=False,
        relative_bias="t5",
        relative_buckets=8,
        relative_distance=15,
        relative_per_layer=True,
        layers="rolled",
    ),
    "alibi": gpt_config(context=CONTEXT, positions="none", relative_bias="alibi", sinks=True, n_heads=6, layers="rolled"),
    "rounded alibi": gpt_config(context=CONTEXT, positions="none", relative_bias="alibi_bfloat16", n_heads=6, layers="rolled"),
    "cohere": gpt_config(
        context=CONTEXT,
        positions="none",
        norm_bias=False,
        parallel_residual=True,
        shared_norm=True,
        residual_multiplier=0.7,
        rotary="interleaved",
        rotary_pattern=(False, True),
        window=5,
        layer_pattern=("window", "full"),
        clip_qkv=0.9,
        activation="gelu_bloom",
        layers="rolled",
    ),
    "olmo 2": gpt_config(
        context=CONTEXT,
        **BARE,
        norm_position="output",
        qk_norm=True,
        qk_norm_over="all",
        rotary="half",
        rotary_pattern=(True, False),
        clip_qkv=1.1,
        activation="relu_squared",
        embedding_multiplier=1.7,
        residual_multiplier=1.3,
        layers="unrolled",
    ),
    "nanochat": gpt_config(
        context=CONTEXT,
        **BARE,
        norm_affine=False,
        embedding_norm=True,
        qk_norm=True,
        qk_norm_affine=False,
        qk_norm_after_rotary=True,
        rotary="half",
        rotary_reversed=True,
        n_kv_heads=K,
        activation="relu_squared",
        logits_softcap=1.5,
        layers="rolled",
    ),
    "norms of heads with gains of their own": gpt_config(
        context=CONTEXT,
        positions="none",
        rotary="half",
        qk_norm=True,
        qk_norm_kind="layer",
        qk_norm_over="each",
        qk_norm_bias=True,
        n_kv_heads=K,
        layers="rolled",
    ),
    "disentangled": gpt_config(
        context=CONTEXT,
        positions="none",
        projections="fused",
        relative_bias="disentangled",
        relative_buckets=6,
        relative_distance=9,
        layers="rolled",
    ),
    "shared layers": gpt_config(
        context=CONTEXT, shared_layers=True, layer_scale=0.3, rotary="half", positions="none", window=5, layers="rolled"
    ),
    "deepseek": gpt_config(
        context=CONTEXT,
        **BARE,
        kv_latent=7,
        query_latent=5,
        head_dim=10,
        rotary="interleaved",
        rotary_dim=4,
        value_dim=9,
        attention_scale=0.4,
        gated=True,
        activation="silu",
        n_experts=6,
        experts_per_token=2,
        router="sigmoid",
        router_normalised=True,
        router_scale=2.5,
        router_correction=True,
        expert_groups=3,
        groups_per_token=2,
        group_score="best_two",
        shared_d_ff=8,
        dense_layers=1,
        dense_d_ff=20,
        layers="rolled",
    ),
    "gemma 4": gpt_config(
        context=CONTEXT,
        **SCALED,
        n_layers=5,
        layer_pattern=("window", "full"),
        full_value_projection=False,
        layer_embedding=5,
        shared_kv_layers=2,
        shared_kv_d_ff=18,
    ),
    "gemma 4 with experts": gpt_config(
        context=CONTEXT,
        **SCALED,
        n_layers=5,
        layer_pattern=("window", "window", "full"),
        n_experts=5,
        experts_per_token=2,
        router_normalised=True,
        shared_d_ff=14,
        expert_norms=True,
        expert_scale=True,
    ),
    "dense layers first, patterns of layers": gpt_config(
        context=CONTEXT,
        **BARE,
        rotary="half",
        rotary_pattern=(False, True, True),
        window=5,
        layer_pattern=("full", "window"),
        n_layers=5,
        n_experts=6,
        dense_layers=2,
        dense_d_ff=20,
        layers="unrolled",
    ),
    "t5": gpt_config(
        context=CONTEXT,
        **BARE,
        relative_bias="t5",
        relative_buckets=8,
        relative_distance=15,
        attention_scale=1.0,
        layers="rolled",
    ),
}
T5 = {"relative_bias": "t5", "relative_buckets": 12, "relative_distance": 16, "attention_scale": 1.0}
LONGROPE = {"rotary_scaling": "longrope", "rotary_factor": 3.0, "rotary_original_context": 9, "rotary_dim": 6}
LONGROPE |= {"rotary_short_factors": (1.1, 1.2, 1.4), "rotary_long_factors": (1.5, 2.0, 4.0)}
GROWING = {"rotary_scaling": "dynamic", "rotary_factor": 2.5, "rotary_original_context": 9}
BY_LENGTH = {
    "longrope, norms without gain": gpt_config(context=CONTEXT, positions="none", norm_affine=False, rotary="half", **LONGROPE),
    "a base that grows, in layers without a window": gpt_config(
        context=CONTEXT,
        positions="none",
        rotary="interleaved",
        window=5,
        layer_pattern=("window", "full"),
        rotary_window_base=30.0,
        **GROWING,
    ),
}
"""GPTs whose angles depend on the longest position of a call, so that a cache holds keys of several angles."""
FRAMES = "a source of frames, keys without a bias"
OTHERS = BY_LENGTH | {
    "an encoder with embeddings of their own width, a window on both sides and token types": encoder_config(
        context=CONTEXT,
        embedding_width=10,
        embedding_norm=True,
        norm_position="sandwich",
        token_types=2,
        window=4,
        rotary="interleaved",
        rotary_dim=4,
    ),
    "an encoder with buckets on both sides": encoder_config(context=CONTEXT, **BARE, **T5),
    "an encoder with shared layers": encoder_config(
        context=CONTEXT, shared_layers=True, norm_position="post", layers="unrolled"
    ),
    "a causal encoder with layer scale": encoder_config(
        context=CONTEXT, positions="none", causal=True, layer_scale=0.4, relative_bias="t5", relative_buckets=8, norm="rms"
    ),
    "modernbert": encoder_config(
        context=CONTEXT,
        positions="none",
        embedding_norm=True,
        norm_bias=False,
        first_attention_norm=False,
        gated=True,
        rotary="half",
        rotary_window_base=30.0,
        window=4,
        layer_pattern=("full", "window", "window"),
        n_layers=5,
    ),
    "deberta": encoder_config(
        context=CONTEXT,
        norm_position="post",
        embedding_norm=True,
        relative_bias="disentangled",
        relative_buckets=8,
        relative_distance=20,
        relative_norm=True,
        attention_scale=0.3,
    ),
    "an encoder with slopes": encoder_config(context=CONTEXT, positions="none", relative_bias="alibi"),
    "t5's encoder-decoder": seq2seq_config(
        context=CONTEXT,
        **BARE,
        **T5,
        relative_per_layer=True,
        gated=True,
        activation="gelu_tanh",
        tied=True,
        logits_scale=0.2,
        logits_softcap=2.0,
        n_decoder_heads=2,
    ),
    FRAMES: seq2seq_config(context=CONTEXT, source_features=5, key_bias=False, source_context=19, tied=True, position_offset=2),
    "blenderbot-small": seq2seq_config(
        context=CONTEXT, embedding_norm=True, positions_last=True, embedding_scale=True, source_embedding_scale=False
    ),
    "rotary and windows of both stacks, norms of heads in cross-attention": seq2seq_config(
        context=CONTEXT,
        norm="rms",
        norm_position="sandwich",
        positions="none",
        embedding_width=14,
        qk_norm=True,
        sinks=True,
        rotary="half",
        rotary_pattern=(False, True),
        clip_qkv=0.8,
        window=5,
        layer_pattern=("full", "window"),
        n_decoder_layers=3,
    ),
}
CONFIGS = GPTS | OTHERS


@functools.cache
def model_twins(name):
    config = CONFIGS[name]
    inputs = adversarial_inputs(config, B, CONTEXT, seed=2)
    reference, candidate = twins(abstract(config), torch_models.build(config).eval(), *inputs, call=call_torch)
    return reference, Candidate(candidate.like, call_jax)


@pytest.mark.first(8)
@checks
@pytest.mark.parametrize(
    "name",
    usually(
        CONFIGS,
        "gemma",
        "neox",
        "alibi",
        "nanochat",
        "shared layers",
        "t5's encoder-decoder",
        "cohere",
        "deepseek",
        "modernbert",
        "deberta",
        "gemma 4",
        "gemma 4 with experts",
        *BY_LENGTH,
        FRAMES,
    ),
)
def test_equal(name, check):
    reference, candidate = model_twins(name)
    if check.__name__ == "check_all_gradients":
        config = CONFIGS[name]
        changed = config.qk_norm or config.sinks or config.relative_bias == "disentangled"
        null = config.rotary == "none" and not changed  # else a key's bias changes its weight
        unread = (".correction.bias", ".output_scale.weight", *((".key.bias",) if null else ()))
        assert check(reference, candidate) == [each for each in reference.weights if each.endswith(unread)]
    else:
        run_check(check, reference, candidate)


@functools.cache
def wide_twins(name):
    """Both models in float64."""
    with jax.enable_x64(True):
        reference, candidate = model_twins(name)
        model = to_float64(candidate.model(reference))
        return model, load_torch(torch_models.build(CONFIGS[name]).double(), model).eval()


PIECES = {"prefix and one by one": (20, 1, 1, 1), "pieces": (4, 12, 2, 5)}
CAPACITY = CONTEXT + 2


def left_padded(n):
    """Tokens, which are no padding over the places of a cache, and positions that count no padding."""
    tokens = np.random.default_rng(7).integers(0, V, (3, n)).astype(np.int32)
    padding = np.array([[0], [2], [9]])
    valid = np.arange(CAPACITY)[None] >= padding
    return tokens, valid[:, None, None], np.maximum(np.arange(n)[None] - padding, 0)


@pytest.mark.first(1)
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("pieces", usually(PIECES, "pieces"))
@pytest.mark.parametrize("name", usually(GPTS, "gemma", "neox", "olmo 2", "deepseek", "disentangled", "gemma 4"))
def test_cached_equals_uncached(name, pieces):
    """After left padding, with positions given."""
    model, twin = wide_twins(name)
    tokens, valid, positions = left_padded(CONTEXT)
    given = {"mask": torch.from_numpy(valid[..., :CONTEXT]), "positions": torch.from_numpy(positions)}
    with torch.no_grad():
        reference = twin(torch.from_numpy(tokens), **given)
        held, torch_logits = torch_cache(twin, 3, CAPACITY), []
        extend = jax.jit(
            lambda model, piece, cache, places: model.extend(piece, cache, mask=jnp.asarray(valid), positions=places)
        )
        cache, logits = empty_cache(model, 3, CAPACITY), []
        for piece, places in zip(
            *(np.split(array, np.cumsum(PIECES[pieces])[:-1], 1) for array in (tokens, positions)), strict=True
        ):
            found, cache = extend(model, piece, cache, places)
            mine, held = twin.extend(
                torch.from_numpy(piece), held, mask=torch.from_numpy(valid), positions=torch.from_numpy(places)
            )
            logits.append(found)
            torch_logits.append(mine)
    check_float64("logits", jnp.concatenate(logits, 1), reference)
    check_float64("torch's logits", torch.cat(torch_logits, 1), reference)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", GPTS | BY_LENGTH)
def test_what_it_writes_behind_padding_and_past_the_context(name):
    model, twin = wide_twins(name)
    prompt = np.random.default_rng(3).integers(0, V, (3, 10 if "longrope" in name else 9)).astype(np.int32)
    valid = np.arange(prompt.shape[1])[None] >= np.array([[0], [2], [5]])
    found = generate(model, prompt, 20, valid=valid)
    reference = torch_generate(twin, torch.from_numpy(prompt), 20, valid=torch.from_numpy(valid))
    assert np.array_equal(found, reference.numpy())
    assert len(np.unique(found)) > 3


def test_longrope_is_not_passed_while_tokens_are_generated():
    """Of texts on either side of the original context, a cache is right."""
    model = GPT(CONFIGS["longrope, norms without gain"], rngs=nnx.Rngs(0))
    prompt = np.zeros((1, 5), np.int32)
    assert generate(model, prompt, 5).shape == (1, 5)
    with pytest.raises(InputError, match=r"n_tokens = 6 after 5 of the prompt pass rotary_original_context = 9, .* at most 5"):
        generate(model, prompt, 6)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
def test_what_a_beam_finds():
    model, twin = wide_twins("gemma")
    prompt = np.random.default_rng(4).integers(0, V, (2, 7)).astype(np.int32)
    found = generate_beam(model, prompt, 10, BeamConfig(width=3))
    reference = torch_generate_beam(twin, torch.from_numpy(prompt), 10, BeamConfig(width=3))
    assert found.tokens.tolist() == [[tokens for tokens, _ in each] for each in reference]
    np.testing.assert_allclose(found.scores, [[score for _, score in each] for each in reference], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", CONFIGS)
def test_attention_weights_and_hidden_states(name):
    model, twin = wide_twins(name)
    tokens, target = (np.random.default_rng(seed).integers(0, V, (2, n)) for seed, n in ((5, CONTEXT), (6, CONTEXT - 3)))
    arrays = (tokens, target) if isinstance(CONFIGS[name], EncoderDecoderConfig) else (tokens,)
    if name == FRAMES:
        arrays = (noise(2, 31, 5).astype(np.float64), target)
    with torch.no_grad():
        for what in ("attention_weights", "hidden_states"):
            reference = getattr(twin, what)(*map(torch.from_numpy, arrays))
            found = getattr(model, what)(*arrays)
            pairs = zip(found, reference, strict=True) if isinstance(reference, tuple) else [(found, reference)]
            for mine, other in pairs:
                check_float64(what, mine, other)


def test_a_layer_of_a_pattern_asks_for_its_kind():
    config = block_config(window=2, layer_pattern=("full", "window"))
    for stack, x in ((Stack(config), jnp.zeros((1, 3, D))), (TorchStack(config), torch.zeros(1, 3, D))):
        with pytest.raises(InputError, match="one of a layer_pattern; call the stack, or give place"):
            stack[0](x)


def test_rotary_attention_has_no_memory():
    config = block_config(rotary="half")
    for module, x in ((MultiHeadAttention(config), jnp.zeros((1, 3, D))), (TorchAttention(config), torch.zeros(1, 3, D))):
        with pytest.raises(InputError, match="of its own tokens; build with cross=True"):
            module(x, x)
