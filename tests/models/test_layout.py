"""Weights as a loop over tokens reads them: the same model, with other layouts of its kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer as jf
from jaxformer.decoding.layout import NARROW, WIDE, columns_of, lay_out
from jaxformer.nn.linear import Columns
from jaxformer.parity.numerics.float64 import to_float64
from jaxformer.parity.probe import excite
from tests.tiny import tiny_config

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="other processors' libraries read kernels as they are")
CONFIGS = {
    "a tied head": tiny_config(tied=True),
    "a head of its own": tiny_config(n_kv_heads=1, gated=True, activation="silu"),
    "latents": tiny_config(positions="none", kv_latent=13, head_dim=10, rotary="half", rotary_dim=4, latent_form="absorbed"),
    "experts": tiny_config(n_experts=3, experts_per_token=2),
}


@pytest.mark.parametrize("n_out", [6, 7], ids=["even", "odd"])
def test_a_product_with_columns_is_one_with_the_kernel(n_out):
    x, w = (np.random.default_rng(i).standard_normal(shape) for i, shape in enumerate([(2, 3, 5), (5, n_out)]))
    with jax.enable_x64(True):
        np.testing.assert_allclose(Columns.of(jnp.asarray(w.T)).multiply(jnp.asarray(x)), x @ w, rtol=1e-14)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_is_the_same_in_either_layout(name):
    with jax.enable_x64(True):
        model = to_float64(excite(jf.abstract(CONFIGS[name]), seed=1))
        ids = jnp.asarray([[1, 5, 3, 7]])
        wanted = model(ids)
        for rows in (1, 3, 8):
            laid = lay_out(model, rows, 64)
            np.testing.assert_allclose(laid(ids), wanted, rtol=0, atol=1e-12, err_msg=f"{rows} rows")
            assert isinstance(laid.head.kernel[...], Columns) == (rows == 1 or (rows == 8 and "tied" in name))


def test_which_kernels_are_laid_out():
    """Measured: narrow ones are faster as they are with some rows, wide ones with a single row."""
    narrow, wide = jnp.zeros((NARROW - 1, WIDE)), jnp.zeros((WIDE, WIDE + 1))
    taken = {
        rows: [isinstance(columns_of(rows, "up.kernel", it), Columns) for it in (narrow, wide)] for rows in (1, 7, 8, 64, 65)
    }
    assert taken == {1: [True, False], 7: [False] * 2, 8: [False, True], 64: [False, True], 65: [False] * 2}
    for name, leaf in (
        ("up.bias", narrow),
        ("key_up.kernel", narrow),
        ("up.kernel", narrow[None]),
        ("up.kernel", narrow.astype("bfloat16")),
    ):
        assert columns_of(1, name, leaf) is leaf


def test_short_texts_lay_out_no_layers():
    model = jf.abstract(CONFIGS["a tied head"])
    laid = jax.eval_shape(lambda model: (lay_out(model, 1, 63), lay_out(model, 8, 63)), model)
    assert laid[0].head.kernel is None
    assert isinstance(laid[1].head.kernel[...], Columns)
    assert not any(isinstance(each.stack.blocks.feed_forward.up.kernel.get_value()[0], Columns) for each in laid)
