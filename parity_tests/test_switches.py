"""Whole models with the switches of modern ones: logits, gradients, the cache and what generation writes.

Texts are longer than every window and go beyond the context before a scaling of rotary positions.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_ref.models as torch_models
from jaxformer.config.models import EncoderDecoderConfig
from jaxformer.config.settings import BeamConfig
from jaxformer.decoding import generate, generate_beam
from jaxformer.models import abstract
from jaxformer.nn.cache import empty_cache
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe.parameters import excite
from jaxformer.parity.run.candidate import Candidate
from jaxformer.selfcheck.call_models import adversarial_inputs, call_jax, call_torch
from jaxformer.selfcheck.ladder import load_torch
from parity_tests.helpers import B, H, K, V, checks, encoder_config, gpt_config, run_check, seq2seq_config, twins
from torch_ref.decoding.generate import generate as torch_generate
from torch_ref.nn.cache import empty_cache as torch_cache

CONTEXT = 23
BARE = {"norm": "rms", "qkv_bias": False, "output_bias": False, "feed_forward_bias": False, "positions": "none"}
LLAMA3 = {"rotary_scaling": "llama3", "rotary_factor": 8.0, "rotary_original_context": 9}
LLAMA3 |= {"rotary_low_frequency_factor": 1.0, "rotary_high_frequency_factor": 4.0}
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
    "alibi": gpt_config(context=CONTEXT, positions="none", relative_bias="alibi", sinks=True, n_heads=6, layers="rolled"),
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
OTHERS = {
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
    "an encoder with slopes": encoder_config(context=CONTEXT, positions="none", relative_bias="alibi"),
    "t5's encoder-decoder": seq2seq_config(
        context=CONTEXT, **BARE, **T5, gated=True, activation="gelu_tanh", tied=True, logits_scale=0.2, logits_softcap=2.0
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


@checks
@pytest.mark.parametrize("name", CONFIGS)
def test_equal(name, check):
    reference, candidate = model_twins(name)
    if check.__name__ == "check_all_gradients":
        found = check(reference, candidate)
        unread = CONFIGS[name].rotary == "none" and not CONFIGS[name].qk_norm  # a turned key bias is one no more
        assert found == [each for each in reference.weights if each.endswith(".key.bias") and unread]
    else:
        run_check(check, reference, candidate)


@functools.cache
def wide_twins(name):
    """Both models in float64."""
    with jax.enable_x64(True):
        reference, candidate = model_twins(name)
        model = to_float64(candidate.model(reference))
        return model, load_torch(torch_models.build(CONFIGS[name]).double(), model).eval()
