"""Masks of floats: which number hides a key, and whether 1 or 0 does, is a side's own; what is hidden is not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.compare import compare
from jaxformer.parity.numerics.float_masks import one_number
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.foreign

B, T, D, N = 4, 5, 6, 2
X = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)
VALID = np.arange(T) < np.array([[5], [3], [4], [2]])
RULES = Family("toy", {}, (Rule("kernel", "weight", "transposed"), Rule("table", "table")))
DISTANCES = np.arange(T)[None] - np.arange(T)[:, None] + T - 1
CHECKS = ("weights", "forward", "local")

TORCH = {
    "lowest": lambda valid, like: (~valid) * torch.finfo(like.dtype).min,
    "-1e4": lambda valid, like: (~valid) * torch.tensor(-1e4, dtype=like.dtype),
    "-inf": lambda valid, like: torch.zeros(valid.shape, dtype=like.dtype).masked_fill(~valid, -torch.inf),
    "switches": lambda valid, like: valid.to(like.dtype),
}
JAX = {
    "lowest": lambda valid: jnp.where(valid, 0.0, jnp.finfo(jnp.float32).min),
    "-1e9": lambda valid: jnp.where(valid, 0.0, -1e9),
    "0.7 of the lowest": lambda valid: jnp.where(valid, 0.0, 0.7 * jnp.finfo(jnp.float32).min),
    "switches": lambda valid: valid.astype(jnp.float32),
    "switches of what is hidden": lambda valid: (~valid).astype(jnp.float32),
}


class TorchAttention(torch.nn.Module):
    """T5's: what it adds to its scores, the mask too, goes to the next layer."""

    def __init__(self, way, *, first):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(D, D, bias=False) for _ in range(4))
        self.way = way
        if first:
            self.table = torch.nn.Parameter(torch.zeros(2 * T - 1, N))

    def forward(self, x, mask, bias):
        q, k, v = (each(x).unflatten(-1, (N, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        if bias is None:
            bias = self.table[torch.from_numpy(DISTANCES)].permute(2, 0, 1)[None]
            bias = torch.where(mask > 0, bias, -torch.inf) if self.way == "switches" else bias + mask
        return self.o(((q @ k.mT + bias).softmax(-1) @ v).transpose(1, 2).flatten(-2)), bias


class TorchNet(torch.nn.Module):
    def __init__(self, way):
        super().__init__()
        self.layers = torch.nn.ModuleList([TorchAttention(way, first=i == 0) for i in range(2)])
        self.way = way

    def forward(self, x, valid):
        mask, bias = TORCH[self.way](valid[:, None, None], x), None
        for layer in self.layers:
            y, bias = layer(x, mask, bias)
            x = x + y
        return x


class Attention(nnx.Module):
    def __init__(self, way, *, first, factor=1.0):
        self.q, self.k, self.v, self.o = (nnx.Linear(D, D, use_bias=False, rngs=nnx.Rngs(0)) for _ in range(4))
        self.way, self.factor = way, factor
        self.table = nnx.Param(jnp.zeros((2 * T - 1, N))) if first else None

    def __call__(self, x, mask, bias):
        q, k, v = (each(x).reshape(*x.shape[:2], N, -1) for each in (self.q, self.k, self.v))
        if bias is None:
            bias = self.table[...][DISTANCES].transpose(2, 0, 1)[None]
            open_keys = {"switches": mask, "switches of what is hidden": 1 - mask}.get(self.way)
            bias = bias + (mask if open_keys is None else jnp.where(open_keys == 1, 0.0, jnp.finfo(jnp.float32).min))
        scores = self.factor * jnp.einsum("btnh,bsnh->bnts", q, k) + bias
        y = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, -1), v)
        return self.o(y.reshape(x.shape)), bias


class Net(nnx.Module):
    def __init__(self, way, *, hidden=lambda valid: valid, factors=(1.0, 1.0)):
        self.layers = nnx.List([Attention(way, first=i == 0, factor=factors[i]) for i in range(2)])
        self.way, self.hidden = way, hidden

    def __call__(self, x, valid):
        mask, bias = JAX[self.way](self.hidden(valid)[:, None, None]), None
        for layer in self.layers:
            y, bias = layer(x, mask, bias)
            x = x + y
        return x


def report_of(torch_way, jax_way, **how) -> Report:
    theirs = excite(TorchNet(torch_way), seed=1)
    return compare(theirs, jax.eval_shape(lambda: Net(jax_way, **how)), (X, VALID), rules=RULES, checks=CHECKS, tier="A")


@pytest.mark.parametrize(
    ("torch_way", "jax_way"),
    [
        ("lowest", "lowest"),
        ("lowest", "0.7 of the lowest"),
        ("lowest", "switches of what is hidden"),
        ("-1e4", "switches"),
        ("-inf", "-1e9"),
        ("switches", "lowest"),
    ],
)
def test_another_number_or_sense_is_the_same_mask(torch_way, jax_way):
    report = report_of(torch_way, jax_way)
    assert report.status == "equal", str(report)
    assert report.diverging == []


BUGS = {
    "leaks": lambda valid: valid.at[1, 3].set(True),
    "inverted": lambda valid: ~valid,
    "of another row": lambda valid: jnp.roll(valid, 1, 0),
}


@pytest.mark.parametrize(
    ("jax_way", "bug"),
    [("lowest", "leaks"), pytest.param("switches", "inverted", marks=pytest.mark.slow), ("switches", "of another row")],
)
def test_another_mask_is_different(jax_way, bug):
    report = report_of("lowest", jax_way, hidden=BUGS[bug])
    assert report.status == "different"
    assert report.diverging[0].jax == ("" if jax_way == "lowest" else "layers.0"), str(report)


@pytest.mark.parametrize("jax_way", usually(["-1e9", "switches of what is hidden"], "-1e9"))
def test_a_bug_beside_is_named_alone(jax_way):
    report = report_of("lowest", jax_way, factors=(1.0, 0.5))
    assert [module.jax for module in report.diverging] == ["layers.1"], str(report)


MASK = np.where(np.random.default_rng(1).random((3, 4)) < 0.5, 0.3, -1e9)
HIDDEN = MASK < 0


@pytest.mark.parametrize(
    ("number", "other"),
    [(-1e9, -1e4 * 1e5), (-1e9, float(np.finfo(np.float32).min)), (np.finfo(np.float64).min, -9e15), (-2e9, -1e9 + 3)],
)
def test_numbers_of_masks_are_one(number, other):
    ours, theirs = (np.where(HIDDEN, each, 0.3) for each in (number, other))
    assert np.array_equal(one_number(ours, theirs, inside=False), theirs)


@pytest.mark.parametrize("number", [1e9, -1.2345e9, -1e7, np.nan, -np.inf, 0.0])
def test_others_are_not(number):
    ours, theirs = (np.where(HIDDEN, each, 0.3) for each in (number, -1e9))
    assert one_number(ours, theirs, inside=False) is ours or np.array_equal(
        one_number(ours, theirs, inside=False), ours, equal_nan=True
    )


def test_huge_numbers_alone_are_no_mask():
    ours, theirs = np.full(3, -1e9), np.full(3, -2e9)
    assert one_number(ours, theirs, inside=False) is ours


class TorchPool(torch.nn.Module):
    """The mean of rows by their scores, over those that a float mask keeps."""

    def __init__(self):
        super().__init__()
        self.score = torch.nn.Linear(D, 1, bias=False)

    def forward(self, x, mask):
        scores = self.score(x)[..., 0] + (1 - mask) * torch.finfo(x.dtype).min
        return (scores.softmax(-1)[..., None] * x).sum(1)


def pool(params, x, mask):
    scores = jnp.where(mask > 0, (x @ params["kernel"])[..., 0], -jnp.inf)
    return (jax.nn.softmax(scores, -1)[..., None] * x).sum(1)


def pooled(call, mask) -> Report:
    theirs = excite(TorchPool(), seed=1)
    params = {"kernel": jnp.asarray(theirs.score.weight.detach().numpy().T)}
    return compare(theirs, params, (X, mask), call_jax=call, tier="A", checks=("weights", "forward", "gradients"))


def test_the_gradient_of_a_float_mask_is_not_judged():
    """torch's mask is a factor there, and JAX's is a condition; no one trains it."""
    report = pooled(pool, VALID.astype(np.float32))
    assert report.status == "equal", str(report)
    assert report.stages[-1].says.endswith("input 1: a mask, whose own gradient is not judged")


def test_the_gradient_of_what_a_mask_hides_is_judged():
    report = pooled(lambda params, x, mask: pool(params, jax.lax.stop_gradient(x), mask), VALID.astype(np.float32))
    assert report.status == "different"
    assert "input 0" in report.stages[-1].says, str(report)


class TorchEmptyPool(TorchPool):
    """NaN where every row is masked."""

    def forward(self, x, mask):
        scores = self.score(x)[..., 0].masked_fill(mask == 0, -torch.inf)
        return (scores.softmax(-1)[..., None] * x).sum(1)


def empty_pooled(call) -> Report:
    theirs, mask = excite(TorchEmptyPool(), seed=1), VALID.astype(np.int32)
    mask[1] = 0
    params = {"kernel": jnp.asarray(theirs.score.weight.detach().numpy().T)}
    return compare(theirs, params, (X, mask), call_jax=call, tier="A", checks=("weights", "forward", "gradients"))


def test_gradients_are_judged_in_rows_in_which_torch_gives_numbers():
    report = empty_pooled(pool)
    assert report.status == "equal", str(report)
    assert report.stages[2].says.endswith(f"without row 1 of {len(X)}, in which torch's output is NaN or infinite")


def test_another_gradient_is_found_beside_rows_of_nan():
    report = empty_pooled(lambda params, x, mask: pool(params, x, mask) + hidden(params, x))
    assert report.stages[2].status == "different", str(report)


def hidden(params, x):
    """0, with a gradient."""
    scores = (x @ params["kernel"])[..., 0].sum(-1, keepdims=True)
    return scores - jax.lax.stop_gradient(scores)
