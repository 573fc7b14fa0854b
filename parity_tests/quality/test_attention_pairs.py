"""Attention's scores and weights, where both sides show them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from torch.nn import functional

from jaxformer.nn.attention import masked_softmax
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite, probe
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import usually

B, T, D, N = 4, 5, 6, 2
X, VALID = probe(None, B, T, seed=1, width=D)
X = X - X.mean(-1, keepdims=True)
CHECKS = ("weights", "forward", "local", "gradients", "activation gradients")


def nan_to_zero(scores, mask):
    return torch.nan_to_num(torch.softmax(scores.masked_fill(~mask, -math.inf), -1))


def means(scores, mask):
    lowest = torch.zeros_like(scores).masked_fill(~mask, torch.finfo(scores.dtype).min)
    return functional.softmax(scores + lowest, dim=-1) * mask.any(-1, keepdim=True)


def method(scores, mask):
    weights = scores.masked_fill(~mask, -1e9).softmax(dim=-1)
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def filled(number):
    return lambda scores, mask: scores.masked_fill(~mask, number).softmax(-1)


NUMBERS = (-math.inf, torch.finfo(torch.float64).min, -1e9, -1e3)
EAGER = {str(number): filled(number) for number in NUMBERS} | {"nan_to_zero": nan_to_zero, "means": means, "method": method}


class TorchAttention(torch.nn.Module):
    def __init__(self, way: str):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(D, D) for _ in range(4))
        self.way, self.num_heads = way, N

    def forward(self, x, mask):
        q, k, v = (each(x).unflatten(-1, (N, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        if self.way == "fused":
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            y = EAGER[self.way](q @ k.mT / math.sqrt(D // N), mask) @ v
        return self.o(y.transpose(1, 2).flatten(-2))


class TorchNet(torch.nn.Module):
    def __init__(self, way: str):
        super().__init__()
        self.layers = torch.nn.ModuleList([TorchAttention(way) for _ in range(2)])

    def forward(self, x, valid):
        for layer in self.layers:
            x = x + layer(x, valid[:, None, None])
        return x


def gathered(
    q, k, v, mask, *, scale=1.0, tapped=("scores", "weights"), path="", bug=lambda weights: weights, fill=None, flip=None
):
    """Attention `B T N H` that taps what it is asked to: its scores before they are masked, or after."""

    def shown(name, x):
        return tap(f"{path}{name}", x) if name in tapped else x

    mask = mask if flip is None else mask.at[..., flip].set(~mask[..., flip])
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) * (scale / math.sqrt(D // N))
    scores = shown("scores", scores if fill is None else jnp.where(mask, scores, fill))
    weights = shown("weights", bug(masked_softmax(scores, mask) if fill is None else jax.nn.softmax(scores, -1)))
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


class Attention(nnx.Module):
    def __init__(self, **how):
        rngs = nnx.Rngs(0)
        self.q, self.k, self.v, self.o = (nnx.Linear(D, D, rngs=rngs) for _ in range(4))
        self.how = how

    def __call__(self, x, mask):
        q, k, v = (each(x).reshape(*x.shape[:2], N, -1) for each in (self.q, self.k, self.v))
        return self.o(gathered(q, k, v, mask, **self.how).reshape(x.shape))


class Net(nnx.Module):
    def __init__(self, **how):
        self.layers = nnx.List([Attention(**how) for _ in range(2)])

    def __call__(self, x, valid):
        for layer in self.layers:
            x = x + layer(x, valid[:, None, None])
        return x


class LinenAttention(linen.Module):
    how: dict

    @linen.compact
    def __call__(self, x, mask):
        q, k, v = (linen.Dense(D, name=name)(x).reshape(*x.shape[:2], N, -1) for name in "qkv")
        return linen.Dense(D, name="o")(gathered(q, k, v, mask, **self.how).reshape(x.shape))


class LinenNet(linen.Module):
    how: dict

    @linen.compact
    def __call__(self, x, valid):
        for i in range(2):
            x = x + LinenAttention(self.how, name=f"layers_{i}")(x, valid[:, None, None])
        return x


def as_linen(tree, x, valid, **how):
    return LinenNet(how).apply({"params": tree}, x, valid)


def as_function(tree, x, valid, **how):
    for name, layer in tree.items():
        q, k, v = ((x @ layer[i]["kernel"] + layer[i]["bias"]).reshape(*x.shape[:2], N, -1) for i in "qkv")
        y = gathered(q, k, v, valid[:, None, None], path=f"{name}.", **how).reshape(x.shape)
        x = x + y @ layer["o"]["kernel"] + layer["o"]["bias"]
    return x


def report_of(way: str = "nan_to_zero", kind: str = "nnx", valid=VALID, checks=CHECKS, **how) -> Report:
    theirs, options = excite(TorchNet(way).eval(), seed=0), {}
    tree = {
        f"layers_{i}": {
            name: {"kernel": np.array(each.weight.detach().numpy().T), "bias": each.bias.detach().numpy()}
            for name, each in layer.named_children()
        }
        for i, layer in enumerate(theirs.layers)
    }
    if kind == "nnx":
        ours = Net(**how)
        for i, layer in enumerate(ours.layers):
            for name, values in tree[f"layers_{i}"].items():
                for last, value in values.items():
                    getattr(getattr(layer, name), last)[...] = jnp.asarray(value)
    else:
        ours, call = tree, {"linen": as_linen, "function": as_function}[kind]
        options = {"call_jax": lambda tree, x, valid: call(tree, x, valid, **how)}
    return compare(theirs, ours, (X, valid), checks=checks, tier="A", **options)


@pytest.fixture(autouse=True)
def _flax_promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def seen(report: Report) -> list[str]:
    return [module.torch for module in report.modules if module.torch.endswith(("scores", "weights"))]


EVERY = [f"layers.{i}.{name}" for i in range(2) for name in ("scores", "weights")]


@pytest.mark.parametrize("way", usually(["nan_to_zero", "means", "method", "fused"], "means", "fused"))
def test_rows_without_keys_raise_no_alarm(way):
    report = report_of(way)
    assert report.status == "equal", str(report)
    assert seen(report) == EVERY
    assert report.torch_only == report.taps == []


@pytest.mark.parametrize("kind", usually(["linen", "function"], "function"))
def test_taps_of_other_kinds_of_models(kind):
    report = report_of(kind=kind)
    assert report.status == "equal", str(report)
    assert seen(report) == EVERY


def test_what_jax_does_not_show_is_not_compared():
    report = report_of(tapped=())
    assert report.status == "equal"
    assert seen(report) == report.torch_only == []


SOME = VALID | (np.arange(T) == 0)
"""Every row has a key."""


@pytest.mark.parametrize(("theirs", "ours"), [(NUMBERS[1], -1e3), (-1e3, -math.inf)])
def test_masks_may_be_of_other_numbers(theirs, ours):
    report = report_of(str(theirs), valid=SOME, fill=ours)
    assert report.status == "equal", str(report)
    assert seen(report) == EVERY


def test_another_mask_is_named_whatever_its_number():
    report = report_of("-1000.0", valid=SOME, fill=-math.inf, flip=1)
    assert {"layers.0.scores", "layers.1.scores"} <= {module.jax for module in report.diverging}, str(report)


class Twice(TorchAttention):
    """What it gives is the first of two."""

    def forward(self, x, mask):
        return torch.stack([super(Twice, self).forward(x, mask) for _ in range(2)])[0]


def test_taps_without_a_pair_are_told_of(monkeypatch):
    monkeypatch.setitem(globals(), "TorchAttention", Twice)
    report = report_of(tapped=("weights",), checks=("forward",))
    torchs = "layers.*.scores, layers.*.weights, layers.*.scores (call 1), layers.*.weights (call 1)"
    assert report.taps == ["layers.*.weights", f"where torch has {torchs}"]
    assert f"taps not compared: layers.*.weights, where torch has {torchs}" in str(report).splitlines()


def gated(kind):
    """A module that takes one more softmax, of another shape."""

    class Gated(kind):
        def forward(self, x, mask):
            y = kind.forward(self, x, mask)
            return y + 0 * y.softmax(-1)

    return Gated


@pytest.mark.parametrize("kind", [TorchAttention, TorchNet])
def test_a_softmax_of_another_shape_is_not_in_the_way(monkeypatch, kind):
    monkeypatch.setitem(globals(), kind.__name__, gated(kind))
    report = report_of("means")
    assert report.status == "equal", str(report)
    assert seen(report) == EVERY


BUGS = {
    "scores of half the size": ({"scale": 0.5}, "scores", "jax multiplies torch's scores by 0.5"),
    "the same, weights alone": (
        {"scale": 0.5, "tapped": ("weights",)},
        "weights",
        "jax takes the softmax of torch's scores times 0.5",
    ),
    "a key hidden": ({"bug": lambda w: w.at[:, :, 1, 0].set(0)}, "weights", f"jax attends to {N * 2} keys fewer than torch"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_diverging_one_and_the_cause(bug):
    how, name, cause = BUGS[bug]
    report = report_of(**how)
    assert [module.jax for module in report.diverging] == [f"layers.{i}.{name}" for i in range(2)], str(report)
    assert all(module.cause.startswith(cause) for module in report.diverging), [module.cause for module in report.diverging]


def test_weights_that_underflow_are_no_masks(monkeypatch):
    monkeypatch.setitem(globals(), "X", X * 20)
    report = report_of(valid=np.ones((B, T), bool), scale=100.0, tapped=("weights",))
    assert "keys" not in report.verdict
    assert report.diverging[0].cause.startswith("jax takes the softmax of torch's scores times 100")


def test_a_bug_in_one_head_shows_in_that_head():
    report = report_of(bug=lambda weights: weights.at[:, 1].multiply(1.5))
    assert [module.heads[0] < 1e-13 < module.heads[1] for module in report.diverging] == [True, True]
    assert [len(module.heads) for module in report.modules if module.jax.endswith("scores")] == [N, N]


LOWEST = str(torch.finfo(torch.float64).min)


@pytest.mark.parametrize("tapped", [("scores", "weights"), ()])
def test_rows_without_a_key_are_a_cause(tapped):
    """torch gives them the mean of all values, ours 0."""
    report = report_of(LOWEST, tapped=tapped, checks=CHECKS[:3])
    assert [module.jax for module in report.diverging] == ["layers.0", "layers.1"], str(report)
    says = "only in rows where every key is masked: torch masks by a large negative number, "
    assert all(module.cause.startswith(says) for module in report.diverging), str(report)


def test_a_bug_in_other_rows_is_another_cause():
    report = report_of(LOWEST, tapped=(), scale=0.5, checks=CHECKS[:3])
    assert [module.jax for module in report.diverging] == ["layers.0", "layers.1"], str(report)
    assert "only in rows" not in str(report)
