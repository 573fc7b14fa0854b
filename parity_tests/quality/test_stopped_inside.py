"""Gradients that stop inside of a module whose values are right: torch's own code tells where."""

import re

import jax
import jax.numpy as jnp
import pytest
import torch
from flax import nnx
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

D = 5
X = noise(6, D, seed=1)
STOPPED = jax.lax.stop_gradient


class TorchGated(torch.nn.Module):
    """Its branch is scaled by what it gives itself; it gives vectors of length 1."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.outer = torch.nn.Linear(D, D), torch.nn.BatchNorm1d(D), torch.nn.Linear(D, D)

    def forward(self, x):
        x = self.inner(x)
        y = self.norm(x)
        gate = torch.sigmoid(2 * y)
        return functional.normalize(x + y * gate + self.outer(x), dim=-1)


class Norm(nnx.Module):
    def __init__(self, theirs, bug):
        self.g, self.b = nnx.Param(jnp.asarray(theirs.weight.detach())), nnx.Param(jnp.asarray(theirs.bias.detach()))
        self.m, self.v = (nnx.BatchStat(jnp.asarray(each)) for each in (theirs.running_mean, theirs.running_var))
        self.bug = bug

    def __call__(self, x):
        mean, variance = x.mean(0), x.var(0)
        self.m[...] = 0.9 * self.m[...] + 0.1 * mean
        self.v[...] = 0.9 * self.v[...] + 0.1 * x.var(0, ddof=1)
        mean = STOPPED(mean) if "mean" in self.bug else mean
        variance = STOPPED(variance) if "variance" in self.bug else variance
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * self.g[...] + self.b[...]


def layers(*torch_layers):
    found = [nnx.Linear(D, D, rngs=nnx.Rngs(0)) for _ in torch_layers]
    for layer, its in zip(found, torch_layers, strict=True):
        layer.kernel[...], layer.bias[...] = jnp.asarray(its.weight.detach().T), jnp.asarray(its.bias.detach())
    return found


class Gated(nnx.Module):
    def __init__(self, torch_model, bug):
        self.inner, self.outer = layers(torch_model.inner, torch_model.outer)
        self.norm, self.bug = Norm(torch_model.norm, bug), bug

    def __call__(self, x):
        def through(place, x):
            return STOPPED(x) if self.bug == place else x

        x = self.inner(x)
        y = self.norm(x)
        gate = jax.nn.sigmoid(2 * through("gate", y))
        x = through("residual", x) + y * gate + self.outer(through("outer", x))
        return x / through("length", jnp.linalg.norm(x, axis=-1, keepdims=True))


NORM, SUM = "torch computes `self.norm(x)` (FILE); jax stops the gradient of its", "x + y * gate + self.outer(x)"


@pytest.mark.parametrize(
    ("bug", "module", "cause"),
    [
        ("mean, variance", "norm", f"{NORM} mean and variance"),
        ("variance", "norm", f"{NORM} variance"),
        ("gate", "", "`2 * y` (FILE); jax stops its gradient"),
        ("residual", "", "`x + y * gate` (FILE); jax stops the gradient of its first operand"),
        ("outer", "", "`self.outer(x)` (FILE); jax stops the gradient of its first operand"),
        ("length", "", f"`functional.normalize({SUM}, dim=-1)` (FILE); jax stops the gradient of its norm"),
    ],
)
def test_where_a_gradient_stops(bug, module, cause):
    torch_model = excite(TorchGated().eval(), seed=1)
    report = compare(torch_model, Gated(torch_model, bug), (X,), mode="train", checks=("activation gradients",), tier="A")
    assert [each.jax for each in report.diverging] == [module], str(report)
    assert cause in re.sub(r"\w+\.py:\d+", "FILE", report.diverging[0].cause), str(report)


class TorchSqueezed(torch.nn.Module):
    """Its branch is gated by what is detached before the gate's own layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.squeeze = torch.nn.Linear(D, D), torch.nn.Linear(D, D)

    def forward(self, x):
        y = self.inner(x)
        return y * self.squeeze((3 * y).tanh().detach())


class Squeezed(nnx.Module):
    def __init__(self, torch_model):
        self.inner, self.squeeze = layers(torch_model.inner, torch_model.squeeze)

    def __call__(self, x):
        y = self.inner(x)
        return self.squeeze(jnp.tanh(3 * y)) * y


def test_a_gradient_that_stops_in_torch_alone_before_a_layer():
    torch_model = excite(TorchSqueezed().eval(), seed=2)
    report = compare(torch_model, Squeezed(torch_model), (X,), checks=("activation gradients",), tier="A")
    (row,) = report.diverging
    assert "; jax does not stop its gradient: `jax.lax.stop_gradient` is missing (" in row.cause, str(report)
