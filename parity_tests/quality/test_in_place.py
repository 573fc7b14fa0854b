"""torch's code that works in place, finds the largest, or has a kind of activation as an argument: causes, and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.recording import record_torch
from jaxformer.parity.runs.gradients_of_weights import gradients_from
from jaxformer.parity.trace.call_sites import ArrayKey, Site
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign
X = noise(3, 4, 6, seed=1)


class Theirs(torch.nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.middle, self.first, self.last = middle, torch.nn.Linear(6, 8), torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.last(self.middle(self.first(x)))


def scaled(y):
    y.mul_(0.5)
    return y


def shifted(y):
    y += 1.5
    return y


def report_of(middle, ours, x=X, checks=("weights", "forward", "local")):
    theirs = excite(Theirs(middle).eval(), seed=0)
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in theirs.named_parameters()}

    def port(w, x):
        return ours(x @ w["first.weight"].T + w["first.bias"]) @ w["last.weight"].T + w["last.bias"]

    return compare(theirs, weights, (x,), call_jax=port, checks=checks, tier="A")


CAUSES = {
    "a method": (lambda y: y.relu_(), jax.nn.silu, "jax has silu there"),
    "a method whose result nobody takes": (scaled, lambda y: 0.7 * y, "jax has 0.7 for 0.5 there"),
    "an operator": (shifted, lambda y: y + 1.2, "jax has 1.2 for 1.5 there"),
    "gelu's other form": (
        lambda y: functional.gelu(y, approximate="tanh"),
        lambda y: jax.nn.gelu(y, False),
        "jax has gelu there",
    ),
}


@pytest.mark.parametrize("how", CAUSES)
def test_causes(how):
    middle, ours, cause = CAUSES[how]
    assert cause in report_of(middle, ours).verdict


LARGEST = {
    "amax": (lambda y: y / y.amax(-1, keepdim=True), lambda y, stop: y / stop(y.max(-1, keepdims=True))),
    "a norm": (
        lambda y: y / y.norm(float("inf"), dim=-1, keepdim=True),
        lambda y, stop: y / stop(jnp.abs(y).max(-1, keepdims=True)),
    ),
}


@pytest.mark.parametrize("how", LARGEST)
def test_gradients_through_the_largest_are_judged(how):
    """Their rounding is no excuse for a gradient that stops."""
    middle, ours = LARGEST[how]
    checks = ("weights", "forward", "gradients")
    assert report_of(middle, lambda y: ours(y, lambda x: x), checks=checks).status == "equal"
    assert report_of(middle, lambda y: ours(y, jax.lax.stop_gradient), checks=checks).status == "different"


def test_that_numbers_keep_torch_from_being_replayed_is_told():
    x = np.array(X)
    x[0, 0] = np.nan
    assert "torch's array has NaN or infinite entries" in report_of(torch.sigmoid, jax.nn.hard_sigmoid, x).verdict


def test_what_is_changed_in_place_may_be_where_gradients_are_cut():
    theirs = excite(Theirs(shifted).eval(), seed=0)
    reference = record_torch(theirs, (X,))
    sending, cut = {ArrayKey(Site("last", 0), "output", 0)}, {ArrayKey(Site("first", 0), "output", 0)}
    found = gradients_from(reference, sending, cut)
    assert not found["first.weight"].any()
    assert_allclose(found["last.weight"], reference.gradients["last.weight"], rtol=1e-12)
