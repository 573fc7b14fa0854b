"""Channels first beside channels last: where all sizes coincide, it costs and finds what it does where none do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.numerics.axis_order import SAMPLE, nearer_order
from jaxformer.parity.probe import excite
from jaxformer.parity.runs import activation_patching
from jaxformer.parity.trace.jax_hooks import tap

C = 4
SQUARE, OBLONG = (C, C, C, C), (2, C, 3, 5)
NAMES = "stem", "down.0", "down.1", "head"


class TorchPictures(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(C, C, 3, padding=1)
        self.down = torch.nn.ModuleList([torch.nn.Conv2d(C, C, 3, padding=1) for _ in range(2)])
        self.head = torch.nn.Conv2d(C, C, 1)

    def forward(self, x):
        x = self.stem(x)
        for conv in self.down:
            x = x + torch.tanh(conv(x))
        return self.head(x)


class Garbage(nnx.Conv):
    """Near to nothing of torch's."""

    def __call__(self, inputs, **rest):
        return 5 * jnp.flip(jnp.sin(7 * super().__call__(inputs, **rest)), (0, 1, 2, 3))


class Pictures(nnx.Module):
    def __init__(self, stem=nnx.Conv):
        rngs = nnx.Rngs(0)
        self.stem = stem(C, C, (3, 3), rngs=rngs)
        self.down = nnx.List([nnx.Conv(C, C, (3, 3), rngs=rngs) for _ in range(2)])
        self.head = nnx.Conv(C, C, (1, 1), rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for conv in self.down:
            x = x + jnp.tanh(conv(x))
        return self.head(x)


def call_jax(model, x):
    return model(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.fixture(autouse=True)
def _flax_promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def theirs():
    return excite(TorchPictures().eval(), seed=0)


def report_of(theirs, shape, stem=nnx.Conv):
    ours, x = Pictures(stem), np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for name, torch_conv in ((name, theirs.get_submodule(name)) for name in NAMES):
        conv = ours.down[int(name[-1])] if name.startswith("down") else getattr(ours, name)
        conv.kernel[...] = jnp.asarray(torch_conv.weight.detach().permute(2, 3, 1, 0).numpy())
        conv.bias[...] = jnp.asarray(torch_conv.bias.detach().numpy())
    return compare(theirs, ours, (x,), call_jax=call_jax, checks=("weights", "forward", "local", "gradients"), tier="A")


def test_as_much_is_traced_where_all_sizes_coincide(theirs, monkeypatch):
    original, traced = activation_patching.in_shape, []
    monkeypatch.setattr(activation_patching, "in_shape", lambda *given: traced.append(given[1]) or original(*given))
    counts = []
    for shape in (SQUARE, OBLONG):
        assert (report := report_of(theirs, shape)).status == "equal", str(report)
        counts.append(len(traced))
        traced.clear()
    assert counts[0] == counts[1] > 0


def test_garbage_in_square_pictures_is_where_it_is(theirs):
    report = report_of(theirs, SQUARE, Garbage)
    assert [module.jax for module in report.diverging] == ["stem"]


def test_an_order_that_a_sample_does_not_tell_is_told_by_all_entries():
    theirs = np.zeros((2, 80, 80))
    assert theirs.size > SAMPLE
    theirs[1, 3, 70] = 1.0
    assert nearer_order(theirs, theirs.transpose(0, 2, 1), (0, 1, 2)) == (0, 2, 1)
    assert nearer_order(theirs, theirs, (0, 1, 2)) == (0, 1, 2)


class TorchPatches(torch.nn.Module):
    """Windows of a picture, as channels before positions, then a norm and a layer of each."""

    def __init__(self, side, stride):
        super().__init__()
        self.patch, self.head = torch.nn.Conv2d(3, 8, side, stride, padding=side // 2 if side < 4 else 0), torch.nn.Linear(8, 5)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.head(self.norm(self.patch(x).permute(0, 2, 3, 1)).flatten(1, 2))


class Strided(nnx.Module):
    """The convolution of `TorchPatches` with XLA's padding."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.patch = nnx.Conv(3, 8, (3, 3), strides=2, padding="SAME", rngs=rngs)
        self.norm, self.head = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs), nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(self.patch(x.transpose(0, 2, 3, 1))).reshape(2, -1, 8))


def test_a_convolution_whose_output_is_as_wide_as_it_has_channels_is_named():
    """The output is laid out as the input, which values do not tell: they are wrong."""
    torch_model = excite(TorchPatches(3, 2).eval(), seed=0)
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    jax_model = Strided()
    jax_model.patch.kernel[...] = jnp.asarray(torch_model.patch.weight.detach().permute(2, 3, 1, 0).numpy())
    report = compare(torch_model, jax_model, (x,), checks=("forward", "local"), tier="A")
    assert [module.jax for module in report.diverging] == ["patch"], str(report)
    assert "jax pads as 'SAME' does" in report.verdict


def test_patches_that_jax_makes_by_a_product_are_not_blamed_for_a_fault_behind_them():
    """jax's array merges rows and columns, which are behind the channels in torch's."""

    def call(weights, x):
        x = x.reshape(2, 3, 4, 4, 4, 4).transpose(0, 2, 4, 1, 3, 5).reshape(2, 16, 48)
        x = tap("patch", x @ weights["patch.weight"].reshape(8, -1).T + weights["patch.bias"]).reshape(2, 4, 4, 8)
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        x = tap("norm", x * weights["norm.weight"] + weights["norm.bias"]).reshape(2, -1, 8)
        return tap("head", jnp.sin(x) @ weights["head.weight"].T + weights["head.bias"])

    torch_model = excite(TorchPatches(4, 4).eval(), seed=0)
    weights = {name: jnp.asarray(parameter.detach().numpy()) for name, parameter in torch_model.named_parameters()}
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    report = compare(torch_model, weights, (x,), call_jax=call, checks=("forward", "local"), tier="A")
    assert [module.jax for module in report.diverging] == ["head"], str(report)
