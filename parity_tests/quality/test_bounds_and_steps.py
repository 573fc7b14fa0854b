"""Bounds, choices and steps that are mistaken, and causes that only seem to fit; an array that is passed twice."""

import jax.numpy as jnp
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

X = noise(3, 4, 6, seed=1)


class Torch(torch.nn.Module):
    """Divides by a bounded sum, and adds the nearest rows of three tables one after the other."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 8), torch.nn.Linear(6, 8)
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(11, 8) for _ in range(3))

    def forward(self, x):
        left = self.a(x) / self.b(x).abs().sum(-1, keepdim=True).clamp(min=4)
        total = 0
        for table in self.tables:
            row = table((left[..., None, :] - table.weight).pow(2).sum(-1).argmin(-1))
            left, total = left - row, total + row
        return total + left * 0.5


def forward(weights, x, bug):
    def linear(name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"][None, None]

    b = linear("b")
    size = jnp.abs(b.sum(-1, keepdims=True)) if bug == "sum first" else jnp.abs(b).sum(-1, keepdims=True)
    left = linear("a") / (jnp.minimum if bug == "largest" else jnp.maximum)(size, 4)
    total = 0
    for i in range(3):
        table = weights[f"tables.{i}.weight"]
        choose = jnp.argmax if bug == "farthest" else jnp.argmin
        row = table[choose(((left[..., None, :] - table[None, None]) ** 2).sum(-1), -1)]
        left, total = left - row, row if bug == "last alone" else total + row
    return total + left * 0.5


BUGS = {
    "largest": "jax bounds it from above by that (`max`)",
    "sum first": "jax does the second first",
    "farthest": "jax has argmax there",
    "last alone": "jax leaves out the first operand",
}


@pytest.fixture(scope="module")
def torch_model():
    return excite(Torch().eval(), seed=0)


@pytest.mark.parametrize("bug", BUGS)
def test_bounds_and_steps(torch_model, bug):
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in torch_model.named_parameters()}
    how = {"call_jax": lambda w, x: forward(w, x, bug), "checks": ("forward", "local"), "tier": "A"}
    report = compare(torch_model, weights, (X,), **how)
    assert BUGS[bug] in report.verdict, str(report)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(6, 6)

    def forward(self, x, places):
        return self.out(x + torch.tanh(x + places))


class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.layer = torch.nn.Linear(6, 6), Layer()

    def forward(self, x):
        places = self.places(x)
        return self.layer(torch.zeros_like(places), places)


class JaxLayer(nnx.Module):
    def __init__(self):
        self.out = nnx.Linear(6, 6, rngs=nnx.Rngs(0))

    def __call__(self, x, places):
        return self.out(x + jnp.tanh(x + places))


class JaxWhole(nnx.Module):
    def __init__(self, weights):
        self.places, self.layer = nnx.Linear(6, 6, rngs=nnx.Rngs(0)), JaxLayer()
        for name, each in (("places", self.places), ("layer.out", self.layer.out)):
            each.kernel[...], each.bias[...] = weights[f"{name}.weight"].T, weights[f"{name}.bias"]

    def __call__(self, x):
        places = self.places(x)
        return self.layer(places, places)


def test_a_layer_is_innocent_of_an_array_that_it_is_given_twice():
    torch_model = excite(Whole().eval(), seed=0)
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in torch_model.named_parameters()}
    report = compare(torch_model, JaxWhole(weights), (X,), checks=("forward", "local"), tier="A")
    assert [module.jax for module in report.diverging] == [""], str(report)
    assert "jax adds places" in report.verdict


def test_a_bound_that_leaves_nothing_else_is_no_cause():
    ends = torch.tensor([0, 0, 1, 2, 2, 2, 3, 3, 4, 4, 4, 4])

    class OfEach(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(6, 1)

        def forward(self, x):
            size = self.a(x).exp().flatten()
            sums = torch.zeros(5, dtype=x.dtype).index_add(0, ends, size)
            return size / (sums[ends] + 1e-6)

    def of_all(weights, x):
        size = jnp.exp(x @ weights["a.weight"].T + weights["a.bias"][None, None]).ravel()
        return size / (size.sum() + 1e-6)

    torch_model = excite(OfEach().eval(), seed=0)
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in torch_model.named_parameters()}
    report = compare(torch_model, weights, (X,), call_jax=of_all, checks=("forward", "local"), tier="A")
    assert "at least for the result" not in report.verdict
