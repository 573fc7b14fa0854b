import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxformer.nn.feedforward as ours
import torch_ref.nn.feedforward as theirs
from jaxformer.parity.numerics.metrics import check_float32
from parity_tests.support.helpers import B, D, T, block_config, check_function, checks, noise, run_check, twins

ROWS = {
    "noise": 3 * noise(41),
    "large": np.array([-1e4, -300.0, -40.0, -12.0, 0.5, 12.0, 40.0, 300.0, 1e4], np.float32),
    "around 0": np.linspace(-1e-3, 1e-3, 8, dtype=np.float32),
}
"""Among the large ones, 0.5 has a gradient in every activation: tanh's is all rounding after 12."""
rows = pytest.mark.parametrize("x", ROWS.values(), ids=ROWS)
kinds = pytest.mark.parametrize("kind", ours.ACTIVATIONS)


@rows
@kinds
def test_activations_value_and_gradient(kind, x):
    check_function(ours.ACTIVATIONS[kind], theirs.ACTIVATIONS[kind], x)


@kinds
def test_activations_in_float32(kind):
    x = ROWS["noise"]
    reference = theirs.ACTIVATIONS[kind]
    check_float32(
        kind, jax.jit(ours.ACTIVATIONS[kind])(x), reference(torch.from_numpy(x)), reference(torch.from_numpy(x).double())
    )


def test_gelu_is_x_times_the_normal_distribution():
    assert math.isclose(ours.gelu(jnp.float32(1.0)), 0.5 * (1 + math.erf(math.sqrt(0.5))), rel_tol=2**-22)


@functools.cache
def layer_twins(kind, gated, bias):
    config = block_config(activation=kind, gated=gated, feed_forward_bias=bias)
    return twins(ours.FeedForward(config), theirs.FeedForward(config), noise(B, T, D))


@pytest.mark.first(16)
@checks
@pytest.mark.parametrize("gated", [False, True], ids=["plain", "gated"])
@kinds
def test_feed_forward(kind, gated, check):
    run_check(check, *layer_twins(kind, gated, bias=True))


@checks
def test_feed_forward_without_biases(check):
    run_check(check, *layer_twins("silu", gated=True, bias=False))
