"""Gradients that stop inside of a module whose values are right: torch's own code tells where."""

import jax
import jax.numpy as jnp
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

D = 5
X = noise(6, D, seed=1)
STOPPED = jax.lax.stop_gradient


class TorchGated(torch.nn.Module):
    """Its branch is scaled by what it gives itself."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = torch.nn.Linear(D, D), torch.nn.BatchNorm1d(D)

    def forward(self, x):
        y = self.norm(self.inner(x))
        gate = torch.sigmoid(2 * y)
        return x + y * gate


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


class Gated(nnx.Module):
    def __init__(self, theirs, bug):
        self.inner, self.norm, self.bug = nnx.Linear(D, D, rngs=nnx.Rngs(0)), Norm(theirs.norm, bug), bug
        self.inner.kernel[...] = jnp.asarray(theirs.inner.weight.detach().T)
        self.inner.bias[...] = jnp.asarray(theirs.inner.bias.detach())

    def __call__(self, x):
        y = self.norm(self.inner(x))
        return x + y * jax.nn.sigmoid(2 * (STOPPED(y) if self.bug == "gate" else y))


@pytest.mark.parametrize(
    ("bug", "module", "cause"),
    [
        ("mean, variance", "norm", "torch computes batch_norm; jax stops the gradient of its mean and variance"),
        ("variance", "norm", "torch computes batch_norm; jax stops the gradient of its variance"),
        ("gate", "", "; jax stops its gradient"),
    ],
)
def test_where_a_gradient_stops(bug, module, cause):
    theirs = excite(TorchGated().eval(), seed=1)
    report = compare(theirs, Gated(theirs, bug), (X,), mode="train", checks=("activation gradients",), tier="A")
    assert [each.jax for each in report.diverging] == [module], str(report)
    assert cause in report.diverging[0].cause, str(report)


class TorchSqueezed(torch.nn.Module):
    """Its branch is gated by what is detached before the gate's own layer."""

    def __init__(self):
        super().__init__()
        self.inner, self.squeeze = torch.nn.Linear(D, D), torch.nn.Linear(D, D)

    def forward(self, x):
        y = self.inner(x)
        return y * self.squeeze((3 * y).tanh().detach())


class Squeezed(nnx.Module):
    def __init__(self, theirs):
        self.inner, self.squeeze = (nnx.Linear(D, D, rngs=nnx.Rngs(0)) for _ in range(2))
        for mine, its in ((self.inner, theirs.inner), (self.squeeze, theirs.squeeze)):
            mine.kernel[...], mine.bias[...] = jnp.asarray(its.weight.detach().T), jnp.asarray(its.bias.detach())

    def __call__(self, x):
        y = self.inner(x)
        return self.squeeze(jnp.tanh(3 * y)) * y


def test_a_gradient_that_stops_in_torch_alone_before_a_layer():
    theirs = excite(TorchSqueezed().eval(), seed=2)
    report = compare(theirs, Squeezed(theirs), (X,), checks=("activation gradients",), tier="A")
    (row,) = report.diverging
    assert "; jax does not stop its gradient: `jax.lax.stop_gradient` is missing (" in row.cause, str(report)
