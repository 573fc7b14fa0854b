"""Weights as a loop over tokens reads them: the same model, with other layouts of its kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxformer as jf
from jaxformer.decoding import layout
from jaxformer.decoding.layout import LONG, NARROW, WIDE, by_columns, lay_out, linear_kernels
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


@pytest.mark.parametrize(("here", "groups"), [(1, 2), (3, 3), (64, 8)])
def test_groups_are_two_at_least_on_one_core(here, groups, monkeypatch):
    monkeypatch.setattr("jaxformer.nn.linear.cores", lambda: here)
    assert Columns.of(jnp.zeros((50, 3))).columns.shape[0] == groups


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_the_model_is_the_same_in_either_layout(name, monkeypatch):
    monkeypatch.setattr(layout, "NARROW", 1)
    with jax.enable_x64(True):
        model = to_float64(excite(jf.abstract(CONFIGS[name]), seed=1))
        ids = jnp.asarray([[1, 5, 3, 7]])
        wanted = model(ids)
        for rows in (1, 3, 8):
            laid = lay_out(model, rows, LONG)
            np.testing.assert_allclose(laid(ids), wanted, rtol=0, atol=1e-12, err_msg=f"{rows} rows")
            assert isinstance(laid.head.kernel[...], Columns) == (rows != 3)
            assert is_by_columns(laid, "attention") == (rows != 3)


def is_by_columns(model, part):
    """True if the output projections of the layers' attention are laid out."""
    return isinstance(getattr(model.stack.blocks, part).out.kernel.get_value()[0], Columns)


def test_which_kernels_are_laid_out():
    """Measured: narrow ones are faster as they are with some rows; those of half precision were not measured."""
    narrow, wide = jnp.zeros((NARROW - 1, WIDE)), jnp.zeros((NARROW, NARROW + 1))
    taken = {rows: [isinstance(by_columns(rows, it), Columns) for it in (narrow, wide)] for rows in (1, 7, 8, 64, 65)}
    assert taken == {1: [True] * 2, 7: [False] * 2, 8: [False, True], 64: [False, True], 65: [False] * 2}
    assert by_columns(1, half := wide.astype("bfloat16")) is half


def test_kernels_that_are_read_otherwise_stay():
    names = linear_kernels(jf.abstract(CONFIGS["latents"]))
    assert "stack.blocks.attention.out.kernel" in names
    assert not any("key_up" in name or "value_up" in name for name in names)
    sizes = {"vocab_size": 11, "context": 9, "d_model": 8, "n_layers": 1, "n_heads": 2, "d_ff": 16}
    names = linear_kernels(jf.abstract(jf.EncoderDecoderConfig(**sizes)))
    assert {name.split(".")[0] for name in names} == {"decoder"}
    assert not any("experts" in name for name in linear_kernels(jf.abstract(CONFIGS["experts"])))


def test_short_texts_and_wide_models_with_one_row_stay(monkeypatch):
    model = jf.abstract(CONFIGS["a tied head"])

    def laid(rows, tokens):
        return jax.eval_shape(lambda model: lay_out(model, rows, tokens), model)

    for rows in (1, 8):
        assert not is_by_columns(laid(rows, LONG - 1), "attention")
    assert laid(1, LONG - 1).head.kernel is None
    assert laid(8, LONG - 1).head.kernel.shape == (model.config.d_model, model.config.vocab_size)
    monkeypatch.setattr(layout, "WIDE", model.config.d_model)
    assert laid(1, LONG).head.kernel is None
    assert not is_by_columns(laid(1, LONG), "attention")
