"""Biases by distance: the twin's, T5's own buckets and table, and the slopes of BLOOM, MPT and Falcon."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxformer.nn.positions as ours
import torch_ref.nn.positions as theirs
from jaxformer.evaluation.ladder import load_torch
from jaxformer.nn.disentangled import distance_rows, log_bucket
from jaxformer.nn.masks import padding_mask
from jaxformer.parity.numerics.metrics import check_float64
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import N, block_config
from torch_ref.nn.disentangled import distance_rows as torch_distance_rows
from torch_ref.nn.disentangled import log_bucket as torch_log_bucket

DISTANCES = np.arange(-1100, 1101)
T5 = {"relative_bias": "t5", "relative_buckets": 12, "relative_distance": 20}


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (8, 20), (4, 5), (6, 1000), (64, 256), (34, 100), (12, 24)])
def test_buckets_equal_t5s(buckets, farthest, both_sides):
    from transformers.models.t5.modeling_t5 import T5Attention

    how = {"bidirectional": both_sides, "num_buckets": buckets, "max_distance": farthest}
    reference = T5Attention._relative_position_bucket(torch.from_numpy(DISTANCES), **how).numpy()
    mine = ours.bucket(DISTANCES, buckets, farthest, both_sides=both_sides)
    twin = theirs.bucket(torch.from_numpy(DISTANCES), buckets, farthest, both_sides=both_sides)
    assert np.array_equal(mine, reference)
    assert np.array_equal(twin.numpy(), reference)
    assert reference.max() == buckets - 1


@pytest.mark.parametrize(("buckets", "farthest"), [(256, 512), (32, 128), (8, 20), (6, 9), (4, 500), (64, 65)])
def test_buckets_by_logarithm_equal_debertas(buckets, farthest):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = np.arange(-farthest, farthest + 1)
    reference = make_log_bucket_position(torch.from_numpy(distances), buckets, farthest).long().numpy()
    np.testing.assert_array_equal(log_bucket(distances, buckets, farthest), reference)
    np.testing.assert_array_equal(torch_log_bucket(torch.from_numpy(distances), buckets, farthest).numpy(), reference)
    rows = torch_distance_rows(700, 900, 300, buckets, farthest).numpy()  # clamped beyond the farthest, as in DeBERTa
    np.testing.assert_array_equal(distance_rows(700, 900, 300, buckets, farthest), rows)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("start", [0, 30])
@pytest.mark.parametrize("causal", [True, False])
def test_the_bias_equals_t5s(causal, start):
    """Also of queries after a cache."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    module = excite(ours.RelativeBias(block_config(**T5), causal=causal), seed=1)
    twin = load_torch(theirs.RelativeBias(block_config(**T5), causal=causal), module)
    sizes = {"relative_attention_num_buckets": 12, "relative_attention_max_distance": 20, "num_heads": N, "is_decoder": causal}
    hf = T5Attention(T5Config(**sizes), has_relative_attention_bias=True, layer_idx=0)
    hf.relative_attention_bias.weight.data = twin.weight.data
    reference = hf.compute_bias(35 - start, 35, past_seen_tokens=start).double()
    mine = jax.jit(lambda first: module(35 - start, 35, first, jnp.float64))(start)
    check_float64("jax", mine, reference)
    check_float64("torch", twin(35 - start, 35, start, torch.float64), reference)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 25, 40])
def test_slopes_equal_blooms_and_mpts(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1].numpy()
    mpt = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0].numpy()
    for slopes in (ours.alibi_slopes(heads), theirs.alibi_slopes(heads).numpy()):
        np.testing.assert_allclose(slopes, bloom, rtol=1e-6)
        np.testing.assert_allclose(slopes, mpt, rtol=1e-6)


@pytest.mark.usefixtures("float64")
def test_distances_cost_their_slope_on_both_sides():
    config = block_config(relative_bias="alibi")
    mine = ours.RelativeBias(config, causal=False)(3, 5, 1, jnp.float64)
    check_float64("torch", mine, theirs.RelativeBias(config, causal=False)(3, 5, 1, torch.float64))
    away = np.array([[1, 0, 1, 2, 3], [2, 1, 0, 1, 2], [3, 2, 1, 0, 1]])
    assert np.array_equal(mine, -ours.alibi_slopes(N)[None, :, None, None] * away)


@pytest.mark.parametrize("heads", [1, 6, 32, 71, 128])
def test_a_bias_of_keys_equals_falcons(heads):
    """Bit for bit in float32, also compiled, and of positions beyond those that bfloat16 tells apart; padding takes up none."""
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    valid = np.arange(1500) >= np.array([[0], [3]])
    valid[0, 700:720] = False
    config = block_config(n_heads=heads, d_model=4 * heads, relative_bias="alibi_bfloat16")
    wanted = build_alibi_tensor(torch.from_numpy(valid).long(), heads, torch.float32).view(2, heads, 1, -1) / 2
    module = ours.make_bias(config, causal=True)
    found = jax.jit(lambda mask: module(ours.seen_keys(mask, 1500), jnp.float32))(padding_mask(jnp.asarray(valid)))
    np.testing.assert_array_equal(found, wanted)
    twin = theirs.make_bias(config, causal=True)
    seen = theirs.seen_keys(torch.from_numpy(valid)[:, None, None], 1500)
    assert torch.equal(twin(seen, torch.float32), wanted)
    exact = ours.alibi_slopes(heads)[:, None, None] * (valid[1].cumsum() - 1) / 2
    assert np.abs(found[1] - exact).max() > 1e-3
