"""Tables that JAX code computes and torch holds in float32: frequencies and sinusoids."""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.compare import compare
from jaxformer.parity.numerics.float32_tables import Tables, is_rounded, leading, rounded_window
from jaxformer.parity.probe import excite
from jaxformer.parity.training.trainers import TrainingSpec
from parity_tests.support.helpers import noise

T, D = 7, 10
PERIODIC = ((True, torch.float32), (True, torch.float64), (False, torch.float64))
LINE = Family("line", {}, (Rule("kernel", "weight", "transposed"), Rule("bias", "bias")))


def frequencies(xp, dtype):
    return 1 / xp.asarray(10000, dtype) ** (xp.arange(0, D, 2, dtype=dtype) / D)


def sinusoid(dtype, rows):
    return np.sin(np.arange(rows, dtype=dtype)[:, None] * frequencies(np, dtype))


@pytest.mark.parametrize("rows", [9, 5000])
def test_one_formula(rows):
    assert is_rounded(sinusoid(np.float64, rows), sinusoid(np.float32, rows))
    assert not is_rounded(sinusoid(np.float64, rows + 1)[1:], sinusoid(np.float32, rows))


def test_a_sinusoid_with_a_row_of_zeros_for_the_padding():
    """As XGLM's; no other row may be 0."""
    ours, theirs = sinusoid(np.float64, 5000), sinusoid(np.float32, 5000)
    ours[1] = theirs[1] = 0
    assert is_rounded(ours, theirs)
    ours[2] = 0
    assert not is_rounded(ours, theirs)


def test_the_smallest_frequency_counts():
    ours, theirs = frequencies(np, np.float64), frequencies(np, np.float32)
    assert is_rounded(ours, theirs)
    ours[-1] *= 1 + 2e-6
    assert not is_rounded(ours, theirs)


def test_an_entry_beside_a_huge_one_counts():
    """Slopes of positions under a causal mask."""
    slopes = np.where(np.tri(T), 0.5 * np.arange(T), -1e9)
    assert is_rounded(slopes * (1 + 1e-7), slopes)
    assert not is_rounded(np.where(np.tri(T), 0.25 * np.arange(T), -1e9), slopes)


def test_a_decay_that_is_cut_off_is_another():
    decay = np.tril(0.5 ** (np.arange(64)[:, None] - np.arange(64.0)))
    assert not is_rounded(np.where(decay < 1e-6, 0, decay), decay)


@pytest.mark.parametrize("window", [torch.hann_window, torch.hamming_window, torch.blackman_window])
@pytest.mark.parametrize("entries", [16, 400])
def test_a_window_is_near_zero_at_its_ends(window, entries):
    """So float32's rounding is large there, as a part of an entry."""
    theirs, ours, symmetric = (window(entries, periodic=p, dtype=d).numpy() for p, d in PERIODIC)
    assert is_rounded(ours, theirs)
    assert not is_rounded(symmetric, theirs)
    assert not is_rounded(np.where(ours < 0.2, ours + 1e-6, ours), theirs)


def test_what_is_no_window_has_no_room_at_its_ends():
    for table in (np.linspace(0, 1, 16), np.hanning(64)[:40], 1 - np.hanning(64)):
        assert rounded_window(table) == 0


@pytest.mark.parametrize("padding", [0.0, 0.3])
def test_rows_of_data_are_no_sinusoid(padding):
    """Even if the first looks like one."""
    codes = np.clip(noise(65536, 3, seed=3) / 5, -1, 1)
    codes[0] = padding
    assert not is_rounded(codes * (1 + 2e-3), codes)


def test_what_is_the_same_everywhere_is_no_table():
    assert is_rounded(np.full(5, 1 + 1e-7), np.ones(5))
    assert leading(np.ones(5), (5,)) is None


def test_infinities_have_to_be_the_same():
    mask = np.where(np.tri(3), 0.1, -np.inf)
    assert is_rounded(mask + 1e-9, mask)
    assert not is_rounded(mask, -mask)
    assert not is_rounded(mask.T, mask)


def test_leading_rows_and_columns():
    table = np.arange(12.0).reshape(1, 4, 3)
    np.testing.assert_array_equal(leading(table, (2, 1, 3)), [[[0, 1, 2]], [[3, 4, 5]]])
    assert leading(table, (5, 3)) is None
    assert leading(table, (3,)) is None
    assert leading(table, ()) is None
    assert leading(table, (0, 3)) is None


class Waves(torch.nn.Module):
    """Holds twice as many rows as it needs."""

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(D, D // 2)
        self.register_buffer("table", torch.from_numpy(sinusoid(np.float32, 2 * T)))

    def forward(self, x):
        return torch.tanh(self.line(x) + self.table[: x.shape[1]])


def waves(first):
    """The same, as a function of parameters; its first row is for this position."""

    def call(params, x):
        table = jnp.sin((first + jnp.arange(x.shape[1]))[:, None] * frequencies(jnp, jnp.float32))
        return jnp.tanh(x @ params["line"]["kernel"] + params["line"]["bias"] + table)

    return call


def compared(theirs, call, **more):
    like = {
        "line": {"kernel": jax.ShapeDtypeStruct((D, D // 2), np.float32), "bias": jax.ShapeDtypeStruct((D // 2,), np.float32)}
    }
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return compare(theirs, like, (noise(3, T, D, seed=1),), rules=LINE, call_jax=call, tier="A", **more)


@pytest.fixture
def theirs():
    return excite(Waves().eval(), seed=0)


@pytest.mark.usefixtures("float64")
def test_timescales_are_one_over_frequencies():
    torchs, tables = frequencies(np, np.float32), Tables({"inv_freq": frequencies(np, np.float32)})
    np.testing.assert_array_equal(tables.instead(1 / frequencies(jnp, jnp.float64)), 1 / torchs.astype(np.float64))
    assert list(tables.off) == ["inv_freq"]


def test_one_number_is_a_table_where_rounding_to_float32_makes_torchs_of_it():
    torchs, tables = np.float32(12**0.5), Tables({"scale": np.array(np.float32(12**0.5))})
    with jax.enable_x64(True):
        assert float(tables.instead(jnp.asarray(12**0.5))) == float(torchs)
        assert float(tables.instead(jnp.asarray(12**0.5 * (1 + 2e-7)))) != float(torchs)
    assert list(tables.off) == ["scale"]


def training(call):
    x, y = noise(3, T, D, seed=1), noise(3, T, D // 2, seed=2)
    return TrainingSpec(
        batches=[(x, y)] * 2,
        torch_loss=lambda model, x, y: ((model(x) - y) ** 2).mean(),
        jax_loss=lambda params, x, y: ((call(params, x) - y) ** 2).mean(),
        torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        jax_optimizer=optax.sgd(0.1),
    )


def test_a_table_that_jax_computes_is_torchs(theirs):
    """Forwards, backwards and in training."""
    report = compared(theirs, waves(0), training=training(waves(0)))
    assert report.status == "equal", str(report)
    assert "table, which JAX computes, differs by" in report.stages[1].says


def test_what_is_jitted_does_not_carry_a_table_into_the_next_comparison(theirs):
    """The two tables differ in their last bits."""
    call = jax.jit(waves(0))
    for factor in (1, 1 + 1e-7):
        theirs.table.copy_(theirs.table * factor)
        report = compared(theirs, call, checks=("weights", "forward"), training=training(call))
        assert report.status == "equal", str(report)


def test_another_table_is_not(theirs):
    report = compared(theirs, waves(1), checks=("weights", "forward"))
    assert [stage.status for stage in report.stages] == ["equal", "different"], str(report)


def test_a_difference_of_rounding_would_be_seen(theirs, monkeypatch):
    monkeypatch.setattr("jaxformer.parity.numerics.float32_tables.is_rounded", lambda ours, theirs: False)
    report = compared(theirs, waves(0), checks=("weights", "forward"), training=training(waves(0)))
    assert {stage.name for stage in report.stages if stage.status == "different"} >= {"forward", "loss"}, str(report)


class Turned(torch.nn.Module):
    """Rotates by angles of frequencies that it holds in float32."""

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(D, D)
        self.register_buffer("inv_freq", torch.from_numpy(frequencies(np, np.float32)), persistent=False)

    def forward(self, x):
        angles = torch.arange(x.shape[1])[:, None] * self.inv_freq
        one, other = self.line(x).chunk(2, -1)
        return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()], -1)


def turned(first=0, base=10000, sign=1, complex_numbers=False):
    """The same with a table that numpy computes, as ports to Flax have it."""

    def call(params, x):
        angles = np.outer(first + np.arange(3 * T), base ** (-np.arange(0, D, 2) / D)).astype(np.float32)
        one, other = jnp.split(x @ params["line"]["kernel"] + params["line"]["bias"], 2, -1)
        if complex_numbers:
            whole = (one + 1j * other) * jnp.asarray(np.exp(sign * 1j * angles).astype(np.complex64))[: x.shape[1]]
            return jnp.concatenate([whole.real, whole.imag], -1)
        sines, cosines = jnp.split(jnp.array(np.concatenate([sign * np.sin(angles), np.cos(angles)], -1))[: x.shape[1]], 2, -1)
        return jnp.concatenate([one * cosines - other * sines, other * cosines + one * sines], -1)

    return call


def turned_verdict(call):
    like = {"line": {"kernel": jax.ShapeDtypeStruct((D, D), np.float32), "bias": jax.ShapeDtypeStruct((D,), np.float32)}}
    torchs = excite(Turned().eval(), seed=0)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return compare(
            torchs, like, (noise(3, T, D, seed=1),), rules=LINE, call_jax=call, tier="A", checks=("weights", "forward")
        )


@pytest.mark.parametrize("complex_numbers", [False, True])
def test_a_table_that_numpy_computed_is_torchs_sines_and_cosines(complex_numbers):
    report = turned_verdict(turned(complex_numbers=complex_numbers))
    assert report.status == "equal", str(report)
    assert "inv_freq, which JAX computes, differs by" in report.stages[1].says


@pytest.mark.parametrize("wrong", [{"first": 1}, {"base": 10000.2}, {"sign": -1}])
def test_another_table_that_numpy_computed_is_not(wrong):
    assert turned_verdict(turned(complex_numbers="first" in wrong, **wrong)).status == "different"


class LinenLayer(nn.Module):
    @nn.compact
    def __call__(self, x):
        table = jnp.sin(jnp.arange(x.shape[1])[:, None] * frequencies(jnp, jnp.float32))
        return nn.Dense(D // 2, name="line")(jnp.concatenate([x, jnp.tanh(x * 0.5 + table)], -1)), None


class LinenLayers(nn.Module):
    """Computes the table anew in each of its layers."""

    @nn.compact
    def __call__(self, x):
        layers = nn.scan(LinenLayer, variable_axes={"params": 0}, split_rngs={"params": True}, length=2)
        return layers(name="layers")(x)[0]


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({"line": torch.nn.Linear(D, D // 2)}) for _ in range(2))
        self.register_buffer("table", torch.from_numpy(sinusoid(np.float32, 2 * T)))

    def forward(self, x):
        for layer in self.layers:
            x = layer["line"](torch.cat([x, torch.tanh(x * 0.5 + self.table[: x.shape[1]])], -1))
        return x


def test_a_table_is_torchs_inside_of_a_scan_of_linens():
    """Linen runs the layer once more, for what does not depend on the loop."""
    theirs = excite(Layers().eval(), seed=0)
    lines = [layer["line"] for layer in theirs.layers]
    kernel, bias = (np.stack([getattr(line, it).detach().numpy() for line in lines]) for it in ("weight", "bias"))
    params = {"params": {"layers": {"line": {"kernel": kernel.swapaxes(1, 2), "bias": bias}}}}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        report = compare(theirs, params, (noise(3, T, D // 2, seed=1),), call_jax=LinenLayers().apply, tier="A")
    assert report.status == "equal", str(report)
    assert "table, which JAX computes, differs by" in report.stages[1].says


def test_a_number_that_float32_does_not_hold_warns_of_nothing():
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(Tables({"scale": np.float32(3.0)[None]}).instead(jnp.asarray(-1e300))) == -1e300


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kept", [np.ones((T, 3)), np.tri(T), np.eye(T)], ids=["ones", "causal", "one-hot"])
def test_a_mask_is_no_table_of_cosines(kept):
    """Cosines of low frequencies are 1 in the first rows, up to float32's rounding."""
    tables = Tables({"inv_freq": np.float32([1.0, 1e-3, 1e-5])})
    np.testing.assert_array_equal(tables.instead(jnp.asarray(kept)), kept)


class Plain(torch.nn.Module):
    """Holds its table as a plain attribute, as GPT-J does."""

    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(D, D // 2)
        self.table = torch.from_numpy(sinusoid(np.float32, 2 * T))

    def forward(self, x):
        return torch.tanh(self.line(x) + self.table[: x.shape[1]])


def test_a_table_need_not_be_a_buffer():
    report = compared(excite(Plain().eval(), seed=0), waves(0), checks=("weights", "forward"))
    assert report.status == "equal", str(report)
    assert compared(excite(Plain().eval(), seed=0), waves(1), checks=("weights", "forward")).status == "different"
