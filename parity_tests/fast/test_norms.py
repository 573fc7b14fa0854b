import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxformer.nn.norms as ours
import torch_ref.nn.norms as theirs
from jaxformer.errors import ParityError
from jaxformer.evaluation.mutants.parts import fast_variance, mean
from jaxformer.parity.numerics.metrics import FACTOR, check_float32, check_float64
from jaxformer.runtime.xla_options import exact
from parity_tests.support.helpers import B, D, T, check_function, noise

EPSILON = 1e-5
CONSTANT = np.full((B, T, D), 0.75, np.float32)
ROWS = {
    "noise": noise(B, T, D),
    "mean 50": noise(B, T, D) + 50,
    "one constant row": np.concatenate([noise(B, T, D)[:, 1:], CONSTANT[:, :1]], 1),
    "tiny": noise(B, T, D) * np.float32(1e-3),
}
rows = pytest.mark.parametrize("x", ROWS.values(), ids=ROWS)


@rows
@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_value_and_gradient_equal_torchs(kind, x):
    check_function(lambda x: ours.FUNCTIONS[kind](x, EPSILON), lambda x: theirs.FUNCTIONS[kind](x, EPSILON), x)


@pytest.mark.parametrize("name", ["noise", "mean 50", "tiny"])
def test_std_norms_value_and_gradient_equal_torchs(name):
    check_function(lambda x: ours.std_norm(x, EPSILON), lambda x: theirs.std_norm(x, EPSILON), ROWS[name])


@pytest.mark.parametrize("kind", ["layer", "rms", "std"])
def test_width_1(kind):
    x = noise(B, 1)
    reference = theirs.FUNCTIONS[kind](torch.from_numpy(x).double(), EPSILON)
    with jax.enable_x64(True):
        check_float64(kind, ours.FUNCTIONS[kind](jnp.asarray(x, jnp.float64), EPSILON), reference)


@pytest.mark.parametrize("kind", ["layer", "std"])
def test_a_constant_row_gives_zeros(kind):
    assert not np.asarray(ours.FUNCTIONS[kind](jnp.asarray(CONSTANT), EPSILON)).any()


@pytest.mark.parametrize("kind", ["layer", "rms", "std"])
def test_a_constant_row_has_a_finite_gradient(kind):
    gradient = jax.grad(lambda x: (ours.FUNCTIONS[kind](x, EPSILON) * noise(B, T, D)).sum())(jnp.asarray(CONSTANT))
    assert np.isfinite(gradient).all()


def judge_float32(kind, normalise, x):
    """Tier B for a formula on x and epsilon."""
    reference, tensor = theirs.FUNCTIONS[kind], torch.from_numpy(x)
    found = jax.jit(lambda x: normalise(x, EPSILON), compiler_options=exact())(x)
    return check_float32(kind, found, reference(tensor, EPSILON), reference(tensor.double(), EPSILON), factor=FACTOR)


@rows
@pytest.mark.parametrize("kind", ["layer", "rms", "std"])
def test_float32_is_as_accurate_as_torchs(kind, x):
    judge_float32(kind, ours.FUNCTIONS[kind], x)


def test_float32_notices_the_fast_variance_once_the_mean_is_large():
    with pytest.raises(ParityError, match="tier B"):
        judge_float32("layer", lambda x, e: (x - mean(x)) / jnp.sqrt(fast_variance(x) + e), ROWS["mean 50"])


@pytest.mark.parametrize("kind", ["layer", "rms", "std"])
def test_bfloat16_is_normalised_in_float32(kind):
    x = jnp.asarray(noise(B, T, D), jnp.bfloat16)
    found = ours.FUNCTIONS[kind](x, EPSILON)
    assert found.dtype == jnp.bfloat16
    assert np.array_equal(found, ours.FUNCTIONS[kind](x.astype(jnp.float32), EPSILON).astype(jnp.bfloat16))
