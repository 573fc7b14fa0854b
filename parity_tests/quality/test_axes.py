"""A port may have its axes in another order than torch, of one size or not: that alone is no difference."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.convert.rules import Family, Rule, to_jax
from jaxformer.parity.compare import compare
from jaxformer.parity.numerics.axis_order import order_of, orders_for
from jaxformer.parity.probe import excite, probe
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise, usually

B, T, N, H = 4, 4, 4, 3  # all but the width of a head are of one size
D = N * H
X, _ = probe(None, B, T, seed=1, width=D)
RULES = Family(
    "mine",
    stacks={},
    rules=(
        Rule("rotate.scale", "rotate.scale"),
        Rule("kernel", "weight", "transposed"),
        Rule("scale", "weight"),
        Rule("bias", "bias"),
    ),
)
CHECKS = ("weights", "forward", "local", "gradients", "activation gradients")


class TorchRotate(torch.nn.Module):
    """Reads heads `B N T H`, of which it scales every entry."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(H))

    def forward(self, x):
        return torch.tanh(x * self.scale)


class TorchBlock(torch.nn.Module):
    """Sequence first: `T B D`."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(D)
        self.query, self.key, self.value, self.out = (torch.nn.Linear(D, D) for _ in range(4))
        self.rotate = TorchRotate()
        self.num_heads = N

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (each(y).unflatten(-1, (N, H)).permute(1, 2, 0, 3) for each in (self.query, self.key, self.value))
        weights = (self.rotate(q) @ self.rotate(k).mT / math.sqrt(H)).softmax(-1)
        return x + self.out((weights @ v).permute(2, 0, 1, 3).flatten(-2))


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([TorchBlock()])
        self.norm = torch.nn.LayerNorm(D)

    def forward(self, x):
        x = x.transpose(0, 1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x).transpose(0, 1)


class Rotate(nnx.Module):
    """Reads heads `B T N H`."""

    def __init__(self):
        self.scale = nnx.Param(jnp.ones(H))

    def __call__(self, x):
        return jnp.tanh(x * self.scale)


class Norm(nnx.Module):
    epsilon = 1e-5

    def __init__(self):
        self.scale, self.bias = nnx.Param(jnp.ones(D)), nnx.Param(jnp.zeros(D))

    def __call__(self, x):
        y = x - x.mean(-1, keepdims=True)
        return y / jnp.sqrt((y**2).mean(-1, keepdims=True) + self.epsilon) * self.scale + self.bias


class Block(nnx.Module):
    """Batch first: `B T D`."""

    def __init__(self, rngs):
        self.norm, self.rotate = Norm(), Rotate()
        self.query, self.key, self.value, self.out = (nnx.Linear(D, D, rngs=rngs) for _ in range(4))

    def __call__(self, x):
        y = self.norm(x)
        q, k, v = (each(y).reshape(*x.shape[:2], N, H) for each in (self.query, self.key, self.value))
        scores = tap("scores", jnp.einsum("btnh,bsnh->bnts", self.rotate(q), self.rotate(k)) / math.sqrt(H))
        weights = tap("weights", jax.nn.softmax(scores, -1))
        return x + self.out(jnp.einsum("bnts,bsnh->btnh", weights, v).reshape(x.shape))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs)])
        self.norm = Norm()

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


@pytest.fixture(autouse=True)
def _flax_promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def sides():
    theirs = excite(TorchNet().eval(), seed=0)
    return theirs, to_jax(dict(theirs.named_parameters()), Net(nnx.Rngs(0)), RULES)


def report_of(sides, **options) -> Report:
    return compare(*sides, (X,), rules=RULES, tier="A", **{"checks": CHECKS, **options})


@pytest.mark.parametrize("checks", [CHECKS, ("weights", "forward")])
def test_batch_first_beside_sequence_first(sides, checks):
    report = report_of(sides, checks=checks)
    assert report.status == "equal", str(report)
    paths = {module.jax for module in report.modules}
    assert {"blocks.0.norm", "blocks.0.rotate (call 1)", "blocks.0.scores", "blocks.0.weights", "norm"} <= paths


def wrong(kind, bug):
    """A patch: what a module of this kind gives is changed."""

    def patch(monkeypatch):
        right = kind.__call__
        monkeypatch.setattr(kind, "__call__", lambda self, x: bug(right(self, x)))

    return patch


def garbage(x):
    """Near to nothing of torch's."""
    return 5 * jnp.flip(jnp.sin(7 * x), (0, 1, 2))


ROTATES = {"blocks.0.rotate", "blocks.0.rotate (call 1)"}
BUGS = {
    "small": (wrong(Rotate, lambda x: x * 1.01), ROTATES),
    "in heads, garbage": (wrong(Rotate, garbage), ROTATES),
    "in states, garbage": (wrong(Norm, garbage), {"blocks.0.norm", "norm"}),
    "in a block, garbage": (wrong(Block, garbage), {"blocks.0"}),
    "rows for positions": (wrong(Norm, lambda x: x.swapaxes(0, 1)), {"blocks.0.scores", "blocks.0", "(call)"}),
}


@pytest.mark.parametrize("bug", usually(BUGS, "small", "in states, garbage", "rows for positions"))
def test_a_bug_is_where_it_is(sides, monkeypatch, bug):
    plant, diverging = BUGS[bug]
    plant(monkeypatch)
    report = report_of(sides, checks=("weights", "forward"))
    assert {module.jax for module in report.diverging} == diverging, str(report)


def test_the_cause_is_found_whatever_the_order(sides, monkeypatch):
    monkeypatch.setattr(Norm, "epsilon", 1e-6)
    report = report_of(sides, checks=("weights", "forward"))
    assert [module.jax for module in report.diverging] == ["blocks.0.norm", "norm"]
    assert all(module.cause.startswith("torch epsilon 1e-05; jax epsilon 1e-06") for module in report.diverging)


def test_a_square_output_that_is_turned_is_different(sides):
    report = report_of(sides, call_jax=lambda model, x: model(x).swapaxes(0, 1), checks=("weights", "forward"))
    assert [module.jax for module in report.diverging] == ["(call)"]
    assert report.stages[1].status == "different"


KINDS = {"bool": (bool, bool), "ints": (int, int), "ints beside floats": (int, float), "floats beside ints": (float, int)}


@pytest.mark.parametrize("kinds", KINDS)
def test_no_square_output_is_turned_whatever_it_holds(kinds):
    """Which entries are positive: 7 rows of 7."""
    theirs, (torch_kind, jax_kind) = torch.nn.Linear(6, 7), KINDS[kinds]
    weights = {"kernel": theirs.weight.detach().numpy().T, "bias": theirs.bias.detach().numpy()}
    x = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)

    def verdict(turned: bool) -> str:
        def call_jax(weights, x):
            found = (x @ weights["kernel"] + weights["bias"] > 0).astype(jax_kind)
            return found.T if turned else found

        calls = {"call_torch": lambda model, x: (model(x) > 0).to(torch_kind), "call_jax": call_jax}
        return compare(theirs, weights, (x,), checks=("weights", "forward"), **calls).verdict

    assert verdict(turned=False).startswith("EQUAL")
    assert verdict(turned=True).startswith("DIFFERENT: (call): ")


class MapAndPooled(torch.nn.Module):
    """As vision backbones: a map of the pixels, and its mean."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, D, 2, stride=2), torch.nn.LayerNorm(D)

    def forward(self, x):
        x = torch.tanh(self.conv(x))
        return x, self.norm(x.mean((2, 3)))


class Pooled(nnx.Module):
    """The mean alone."""

    def __init__(self):
        self.conv = nnx.Conv(3, D, (2, 2), strides=2, padding="VALID", rngs=nnx.Rngs(0))
        self.norm = nnx.LayerNorm(D, epsilon=1e-5, use_fast_variance=False, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.norm(jnp.tanh(self.conv(x.transpose(0, 2, 3, 1))).mean((1, 2)))


def test_jax_gives_the_second_of_torchs_outputs_alone():
    theirs, ours = excite(MapAndPooled().eval(), seed=1), Pooled()
    held = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    ours.conv.kernel.set_value(held["conv.weight"].transpose(2, 3, 1, 0))
    ours.conv.bias.set_value(held["conv.bias"])
    ours.norm.scale.set_value(held["norm.weight"])
    ours.norm.bias.set_value(held["norm.bias"])
    x = np.random.default_rng(1).standard_normal((B, 3, 6, 10)).astype(np.float32)
    report = compare(theirs, ours, (x,), call_torch=lambda model, x: model(x)[1], checks=CHECKS, tier="A")
    assert report.status == "equal", str(report)


def test_orders_as_they_stand_come_first_and_axes_of_one_entry_stay():
    assert orders_for((2, 2, 3), (2, 2, 3)) == ((0, 1, 2), (1, 0, 2))
    assert orders_for((5, 4, 3), (4, 5, 3)) == ((1, 0, 2),)
    assert orders_for((1, 1, 3), (1, 1, 3)) == ((0, 1, 2),)
    assert orders_for((2, 2, 6), (2, 2, 3, 2)) == ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0))
    assert orders_for((5, 6, 12), (5, 3, 4, 6)) == ()
    assert orders_for((5, 12, 96), (5, 12, 8, 12)) == ((0, 1, 2), (0, 2, 1))
    assert orders_for((2, 3), (5, 3)) == ()
    assert orders_for((2, 8, 2, 6), (2, 8)) == orders_for((2, 8), (2, 8, 3)) == ()
    assert orders_for((2, 3, 5, 4), (2, 20, 3)) == ((0, 2, 3, 1),)
    assert orders_for((2, 6, 3, 2), (2, 6, 6)) == ((0, 1, 2, 3), (0, 2, 3, 1))
    assert orders_for((2, 3, 5, 4), (2, 5, 12)) == ()
    assert len(orders_for((2,) * 5, (2,) * 5)) == 24


def test_an_order_is_told_by_values_in_spite_of_masks():
    theirs = np.random.default_rng(0).standard_normal((3, 3, 5))
    theirs[0, :, 4], theirs[1, 0, 0] = -np.inf, np.finfo(float).min
    assert order_of(theirs, theirs.transpose(1, 0, 2)) == (1, 0, 2)
    assert order_of(theirs, np.zeros((3, 3, 5))) == (0, 1, 2)


class Branches(torch.nn.Module):
    """Similarities of two branches, normalised each by itself."""

    def forward(self, x, y):
        x = torch.nn.functional.normalize(x, dim=-1)
        y = torch.nn.functional.normalize(y, dim=-1)
        return x @ y.mT


@pytest.mark.foreign
@pytest.mark.parametrize(("axis", "cause"), [(-1, "EQUAL"), (-2, "(test_axes.py:278)); jax has -2 for -1")])
def test_both_branches(axis, cause):
    def ours(_, *both):
        x, y = (each / jnp.linalg.norm(each, axis=axis, keepdims=True) for each in both)
        return x @ y.swapaxes(-1, -2)

    how = {"call_jax": ours, "checks": ("forward", "local"), "tier": "A"}
    assert cause in compare(Branches(), {}, (noise(3, 4, 5, seed=1), noise(3, 6, 5, seed=2)), **how).verdict


class WeightedMean(torch.nn.Module):
    """Mean by weights, and a sum beside it."""

    def forward(self, x, w):
        return (x * w).sum(-1) / w.sum(-1) + x.sum(-1)


@pytest.mark.foreign
def test_one_place_that_suffices_is_told_alone():
    """With means in all three places, the first two cancel."""

    def ours(_, x, w):
        return (x * w).sum(-1) / w.sum(-1) + x.mean(-1)

    how = {"call_jax": ours, "checks": ("forward", "local"), "tier": "A"}
    verdict = compare(WeightedMean(), {}, (noise(3, 4, 5, seed=1), 2 + noise(3, 4, 5, seed=2)), **how).verdict
    assert "x.sum(-1)`" in verdict
    assert "jax has mean there" in verdict
    assert "places" not in verdict


class OfRows(torch.nn.Module):
    """Sums in four places, of which two cancel where both become means."""

    def forward(self, x, w):
        return (x * w).sum(-1) / w.sum(-1) + x.sum(-1) * w.square().sum(-1)


@pytest.mark.foreign
def test_places_that_suffice_are_told_alone():
    def ours(_, x, w):
        return (x * w).sum(-1) / w.sum(-1) + x.mean(-1) * (w**2).mean(-1)

    how = {"call_jax": ours, "checks": ("forward", "local"), "tier": "A"}
    verdict = compare(OfRows(), {}, (noise(3, 4, 5, seed=1), 2 + noise(3, 4, 5, seed=2)), **how).verdict
    assert "torch computes sum, in 2 places (`x.sum(-1)` (" in verdict
    assert "`w.square().sum(-1)` (" in verdict
