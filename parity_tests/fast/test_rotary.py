"""Rotary positions: the twin's, and transformers' own angles and rotations."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxformer.nn.rotary as ours
import torch_ref.nn.rotary as theirs
from jaxformer.convert.decoder_keys import NUMBERS
from jaxformer.parity.numerics.metrics import check_float64
from parity_tests.support.helpers import B, N, T, block_config, check_function, noise

WIDTH = 16
X, POSITIONS = noise(B, T, N, WIDTH), np.random.default_rng(5).integers(0, 300, (B, T))
YARN = {"rotary_scaling": "yarn", "rotary_factor": 4.0, "rotary_original_context": 512}
LLAMA3 = {"rotary_scaling": "llama3", "rotary_factor": 8.0, "rotary_original_context": 64}
LLAMA3 |= {"rotary_low_frequency_factor": 1.0, "rotary_high_frequency_factor": 4.0}
SCALINGS = {
    "none": {},
    "another base": {"rotary_base": 1e6},
    "linear": {"rotary_scaling": "linear", "rotary_factor": 8.0},
    "llama3": LLAMA3,
    "llama3, all pairs kept or scaled": LLAMA3 | {"rotary_low_frequency_factor": 0.99, "rotary_base": 5e5},
    "yarn": YARN,
    "yarn, whose ramp is cut": YARN | {"rotary_original_context": 64, "rotary_beta_fast": 20.0, "rotary_beta_slow": 0.01},
    "yarn, between pairs": YARN | {"rotary_truncate": False, "rotary_base": 150000.0},
    "yarn, other numbers": YARN | {"rotary_beta_fast": 8.0, "rotary_beta_slow": 2.0, "rotary_attention_factor": 1.7},
}
NAMES = {"rotary_base": "rope_theta", "rotary_scaling": "rope_type", **NUMBERS}
"""Fields of ours -> keys of transformers' `rope_parameters`."""
SHAPES = {
    "half": {"rotary": "half"},
    "interleaved": {"rotary": "interleaved"},
    "half of a part": {"rotary": "half", "rotary_dim": 6},
    "interleaved in a part": {"rotary": "interleaved", "rotary_dim": 10},
    "yarn": {"rotary": "half", **YARN},
    "backwards": {"rotary": "half", "rotary_reversed": True, **YARN},
}


def config(**changes):
    return block_config(**{"head_dim": WIDTH, "rotary": "half", **changes})


@pytest.mark.first(4)
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_rotations_equal_torchs(name, windowed):
    settings = config(**SHAPES[name], window=5, rotary_window_base=100.0)
    value = check_function(
        lambda x: ours.rotate(x, ours.make_rotary(settings), jnp.asarray(POSITIONS), windowed),
        lambda x: theirs.rotate(x, theirs.make_rotary(settings), torch.from_numpy(POSITIONS), windowed),
        X,
    )
    other = ours.rotate(jnp.asarray(X), ours.make_rotary(settings), jnp.asarray(POSITIONS), not windowed)
    assert np.abs(value - other).max() > 0.1


@pytest.mark.parametrize("name", SCALINGS)
def test_angles_equal_transformers(name):
    """Whose angles are computed in float32."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    settings = config(**SCALINGS[name])
    named = {NAMES[field]: value for field, value in SCALINGS[name].items()}
    rope = {"rope_type": "default", "rope_theta": 10000.0, **named}
    hf = LlamaRotaryEmbedding(LlamaConfig(head_dim=WIDTH, rope_parameters=rope, max_position_embeddings=4096))
    for module in (ours, theirs):
        rotary = module.make_rotary(settings)
        assert rotary.angles[0] == rotary.angles[1]
        np.testing.assert_allclose(rotary.angles[0], hf.inv_freq.numpy(), rtol=2e-6)
        np.testing.assert_allclose(rotary.amplitudes, hf.attention_scaling, rtol=1e-12)
    assert (np.asarray(rotary.angles[0]) < 1).all() == (name == "linear"), "the first pair stays but for linear scaling"


def transformers_rotation(name, x, cos, sin):
    """What Llama, GPT-J and GPT-NeoX do with cosines and sines of the pairs, `B T P`."""
    from transformers.models.gpt_neox import modeling_gpt_neox
    from transformers.models.gptj import modeling_gptj
    from transformers.models.llama import modeling_llama

    if name == "gptj":
        return modeling_gptj.apply_rotary_pos_emb(x, sin, cos)
    family = {"llama": modeling_llama, "gpt_neox": modeling_gpt_neox}[name]
    twice = (torch.cat([wave, wave], -1) for wave in (cos, sin))
    return family.apply_rotary_pos_emb(x.transpose(1, 2), x.transpose(1, 2), *twice)[0].transpose(1, 2)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("name", "changes"),
    [("llama", {}), ("llama", YARN), ("gptj", {"rotary": "interleaved"}), ("gpt_neox", {"rotary_dim": 4})],
)
def test_rotations_equal_transformers(name, changes):
    rotary = ours.make_rotary(config(**changes))
    angles = torch.from_numpy(POSITIONS)[..., None] * torch.tensor(rotary.angles[0], dtype=torch.float64)
    cos, sin = angles.cos() * rotary.amplitudes[0], angles.sin() * rotary.amplitudes[0]
    x = X.astype(np.float64)
    found = ours.rotate(jnp.asarray(x), rotary, jnp.asarray(POSITIONS))
    width = 2 * cos.shape[-1] if name == "gptj" else WIDTH
    reference = transformers_rotation(name, torch.from_numpy(x)[..., :width], cos, sin)
    check_float64("rotation", found[..., :width], reference)


def test_narrow_numbers_are_rotated_in_float32():
    rotary = ours.make_rotary(config())
    found = ours.rotate(jnp.asarray(X, jnp.bfloat16), rotary, jnp.asarray(POSITIONS))
    exact = ours.rotate(jnp.asarray(X, jnp.bfloat16).astype(jnp.float32), rotary, jnp.asarray(POSITIONS))
    assert found.dtype == jnp.bfloat16
    assert np.array_equal(found, exact.astype(jnp.bfloat16))
