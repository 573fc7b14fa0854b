"""A variance of E[x^2] - E[x]^2 loses its digits where the mean is large: the norm is named, and why."""

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

import jaxformer as jf
from jaxformer.parity.diagnose.by_arrays.norms import SAYS, fast_variance
from jaxformer.parity.diagnose.evidence import Evidence
from jaxformer.parity.numerics.metrics import UNIT_ROUNDOFF
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign
C, G = 6, 2
NORMS = {
    "layer": ((4, 5, C), (-1,), (1, 1, C)),
    "layer over two axes": ((4, 5, C), (-2, -1), (1, 1, C)),
    "batch, channels first": ((4, C, 5), (0, 2), (1, C, 1)),
    "batch, channels last": ((4, 5, C), (0, 1), (1, 1, C)),
    "group": ((4, G, C // G, 5), (2, 3), (1, G, C // G, 1)),
}


@pytest.mark.parametrize("name", NORMS)
def test_it_is_known_by_its_look(name):
    shape, axes, along = NORMS[name]
    x, bias = noise(*shape) + 30, noise(C)
    whole = (len(x), C, 5) if name == "group" else shape

    def norm(kind, variance):
        x_ = x.astype(kind)
        mean = x_.mean(axes, keepdims=True)
        y = (x_ - mean) / np.sqrt(variance(x_, mean) + kind(1e-5)) * noise(*along).astype(kind) + bias.reshape(along).astype(
            kind
        )
        return y.astype(np.float64).reshape(whole)

    def fast(x, mean):
        return (x * x).mean(axes, keepdims=True) - mean * mean

    def exact(x, mean):
        return x.var(axes, keepdims=True)

    theirs = norm(np.float64, exact)
    evidence = Evidence({"input": x.astype(np.float64).reshape(whole)}, parameters={"bias": bias.astype(np.float64)})
    assert fast_variance(evidence, norm(np.float32, fast), theirs, UNIT_ROUNDOFF) == SAYS
    assert fast_variance(evidence, norm(np.float32, exact), theirs, UNIT_ROUNDOFF) == ""


class Torch(torch.nn.Module):
    def __init__(self, mean: float):
        super().__init__()
        self.a, self.norm, self.b, self.mean = torch.nn.Linear(3, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 5), mean

    def forward(self, x):
        return self.b(self.norm(self.a(x) + self.mean))


class Port(nnx.Module):
    def __init__(self, torchs: Torch, **more: Any):
        rngs = nnx.Rngs(0)
        self.a, self.b, self.mean = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 5, rngs=rngs), torchs.mean
        self.norm = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs, **more)
        for name, parameter in torchs.named_parameters():
            path, _, leaf = name.partition(".")
            ours = {"weight": "scale" if path == "norm" else "kernel"}.get(leaf, leaf)
            getattr(getattr(self, path), ours)[...] = jnp.asarray(parameter.detach().numpy().T)

    def __call__(self, x):
        return self.b(self.norm(self.a(x) + self.mean))


@pytest.mark.parametrize(
    ("mean", "said"), [(12, r"^DIFFERENT: float32: .*; digits are lost in norm"), (60, "^DIFFERENT: norm: ")]
)
def test_the_norm_is_named(mean, said):
    theirs = jf.excite(Torch(mean), seed=0)
    report = jf.compare(theirs, Port(theirs), (noise(4, 7, 3),))
    assert report.exit_code == 1
    assert re.search(said, report.verdict)
    assert report.verdict.endswith(SAYS)


def test_without_it_both_are_equal():
    theirs = jf.excite(Torch(60), seed=0)
    assert jf.compare(theirs, Port(theirs, use_fast_variance=False), (noise(4, 7, 3),)).exit_code == 0


def test_what_differs_in_float64_has_lost_no_digits():
    theirs = jf.excite(Torch(0), seed=0)
    ours = Port(theirs, use_fast_variance=False)
    ours.norm.epsilon = 0.5
    said = {stage.name: stage.says for stage in jf.compare(theirs, ours, (noise(4, 7, 3),)).stages}
    assert said["float32"].endswith("; it is different in float64 too")
