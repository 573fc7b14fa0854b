"""A loss is one number: its cause has to give jax's gradients too."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

B, T, D, V, IGNORED = 3, 4, 5, 7, -100
X = noise(B, T, D)
Y = np.random.default_rng(1).integers(0, V, (B, T))
Y[0, :2] = Y[1, 0] = IGNORED


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.head = torch.nn.Linear(D, D), torch.nn.Linear(D, V)

    def forward(self, x):
        share = self.router(x).softmax(-1)
        return self.head(torch.tanh(x) * share), share


@pytest.fixture(scope="module")
def theirs() -> Theirs:
    return excite(Theirs(), seed=1).eval()


def torch_loss(*, balance: float = 0.0, **how: Any) -> Callable[..., Any]:
    """Cross-entropy, and how unevenly the router shares."""

    def call(model: Theirs, x: Any, y: Any) -> Any:
        logits, share = model(x)
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), **how)
        return loss + balance * D * (share.mean((0, 1)) ** 2).sum()

    return call


def jax_loss(
    *, over: str = "valid", smoothing: float = 0.0, others: bool = False, z: float = 0.0, balance: float = 0.0
) -> Callable[..., Any]:
    """The same of a flat dict; `over` says what the sum is divided by."""

    def call(params: Any, x: Any, y: Any) -> Any:
        share = jax.nn.softmax(x @ params["router.weight"].T + params["router.bias"], -1)
        logits = (jnp.tanh(x) * share) @ params["head.weight"].T + params["head.bias"]
        log_p, valid = jax.nn.log_softmax(logits, -1), y != IGNORED
        own = -jnp.take_along_axis(log_p, jnp.maximum(y, 0)[..., None], -1)[..., 0]
        rest = (-log_p.sum(-1) - own) / (V - 1) if others else -log_p.mean(-1)
        losses = jnp.where(valid, (1 - smoothing) * own + smoothing * rest, 0)
        means = {
            "valid": losses.sum() / valid.sum(),
            "all": losses.mean(),
            "rows": (losses.sum(-1) / valid.sum(-1)).mean(),
            "batch": losses.sum() / B,
            "none": losses.sum(),
        }
        squares = jnp.where(valid, jax.nn.logsumexp(logits, -1) ** 2, 0).sum() / valid.sum()
        return means[over] + z * squares + balance * D * (share.mean((0, 1)) ** 2).sum()

    return call


def report_of(theirs: Theirs, torch_options: dict[str, Any], jax_options: dict[str, Any], **options: Any) -> Report:
    calls = {"call_torch": torch_loss(**torch_options), "call_jax": jax_loss(**jax_options)}
    params = {name: parameter.detach().numpy() for name, parameter in theirs.named_parameters()}
    given = {"tier": "A", "checks": ("forward", "gradients"), **calls, **options}
    return compare(theirs, params, (X, Y), **given)


SMOOTH = {"label_smoothing": 0.1}
WEIGHTS = np.linspace(0.5, 3.5, V)
WEIGHTED = {"weight": torch.tensor(WEIGHTS), **SMOOTH}


def weighted_loss(by: str, *, weights: Any = WEIGHTS) -> Callable[..., Any]:
    """Of classes that do not count alike, smoothed by 0.1."""

    def call(params: Any, x: Any, y: Any) -> Any:
        share = jax.nn.softmax(x @ params["router.weight"].T + params["router.bias"], -1)
        logits = (jnp.tanh(x) * share) @ params["head.weight"].T + params["head.bias"]
        terms = jnp.where((y != IGNORED)[..., None], -jax.nn.log_softmax(logits) * weights, 0)
        hot = jax.nn.one_hot(y, V)
        each = (terms * (0.9 * hot + 0.1 / V)).sum(-1)
        counted, shares = (y != IGNORED).sum(-1), (hot * weights).sum(-1)
        means = {"weights": each.sum() / shares.sum(), "all": each.mean(), "valid": each.sum() / counted.sum()}
        return means.get(by, (each.sum(-1) / shares.sum(-1)).mean())

    return call


CAUSES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "ignored targets counted": ({}, {"over": "all"}, "jax divides by all 12 targets, torch by the 9 that are not -100"),
    "rows first": ({}, {"over": "rows"}, "jax takes the mean of each of 3 rows first"),
    "by rows": ({}, {"over": "batch"}, "jax divides the sum by the number of rows, 3"),
    "a sum": ({}, {"over": "none"}, "jax takes the sum, without a mean"),
    "no smoothing": (SMOOTH, {}, "jax does not smooth labels"),
    "more smoothing": (SMOOTH, {"smoothing": 0.2}, "jax smooths labels by 0.2, torch by 0.1"),
    "over the others": (SMOOTH, {"smoothing": 0.1, "others": True}, "jax shares 0.1 among the other classes alone"),
    "a z-loss": ({}, {"z": 1e-3}, r"jax adds 0.001 times the mean square of logsumexp \(z-loss\)"),
    "another balance": ({"balance": 0.01}, {"balance": 0.02}, "`balance .* jax has 0.1 for 0.05 there"),
}


ALL = "the sum of the weights of the 9 that are not -100"
OF_WEIGHTS = {
    "all": (WEIGHTED, f"jax divides by all 12 targets, torch by {ALL} (residual"),
    "valid": (WEIGHTED, f"jax divides by the 9 targets that are not -100, torch by {ALL} (residual"),
    "rows": (WEIGHTED, "jax takes the mean of each of 3 rows first, then over rows (residual"),
    "weights": ({**WEIGHTED, "reduction": "sum"}, f"jax divides by {ALL}, torch by nothing (residual"),
}


@pytest.mark.parametrize("by", usually(OF_WEIGHTS, "all", "weights"))
def test_classes_that_do_not_count_alike(theirs, by):
    torch_options, said = OF_WEIGHTS[by]
    cause = report_of(theirs, torch_options, {}, call_jax=weighted_loss(by)).diverging[0].cause
    assert said in cause, cause


def test_weights_of_classes_that_jax_has_not(theirs):
    cause = report_of(theirs, WEIGHTED, {}, call_jax=weighted_loss("valid", weights=np.ones(V))).diverging[0].cause
    assert "jax does not weigh classes (residual" in cause, cause


def test_probabilities_as_targets_are_not_ids(theirs):
    """torch divides by all places then, whatever the weights are."""

    def call_torch(model: Theirs, x: Any, y: Any) -> Any:
        wanted = torch.softmax(model(x)[0].detach().flatten(0, 1).flip(0), -1)
        return functional.cross_entropy(model(x)[0].flatten(0, 1), wanted, weight=WEIGHTED["weight"])

    def call_jax(params: Any, x: Any, y: Any) -> Any:
        share = jax.nn.softmax(x @ params["router.weight"].T + params["router.bias"], -1)
        logits = ((jnp.tanh(x) * share) @ params["head.weight"].T + params["head.bias"]).reshape(-1, V)
        wanted = jax.lax.stop_gradient(jax.nn.softmax(logits[::-1]))
        return -(wanted * WEIGHTS * jax.nn.log_softmax(logits)).sum() / B

    cause = report_of(theirs, {}, {}, call_torch=call_torch, call_jax=call_jax).diverging[0].cause
    assert "jax divides the sum by the number of rows, 3 (residual" in cause, cause


@pytest.mark.parametrize("case", usually(CAUSES, "a sum", "no smoothing", "a z-loss", "rows first"))
def test_the_cause_gives_jaxs_gradients_too(theirs, case):
    torch_options, jax_options, said = CAUSES[case]
    report = report_of(theirs, torch_options, jax_options)
    assert report.status == "different"
    assert re.search(said, report.diverging[0].cause), report.verdict
    assert "tanh" not in report.diverging[0].cause


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_beside_an_output_that_is_equal_gradients_count_too(theirs, as_dictionary):
    """The logits, and their loss."""

    def torch_outputs(model, x, y):
        logits, share = model(x)
        loss = functional.cross_entropy(logits.flatten(0, 1), y.flatten()) + 0.25 * share.square().mean()
        return {"logits": logits, "loss": loss} if as_dictionary else (logits, loss)

    def jax_outputs(params, x, y):
        share = jax.nn.softmax(x @ params["router.weight"].T + params["router.bias"], -1)
        logits = (jnp.tanh(x) * share) @ params["head.weight"].T + params["head.bias"]
        own = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(y, 0)[..., None], -1)[..., 0]
        loss = own.mean(where=y != IGNORED) + 0.3 * jnp.square(share).mean()
        return {"logits": logits, "loss": loss} if as_dictionary else (logits, loss)

    cause = report_of(theirs, {}, {}, call_torch=torch_outputs, call_jax=jax_outputs).diverging[0].cause
    assert "jax has 0.3 for 0.25 there (residual" in cause, cause


def test_a_right_loss_is_equal(theirs):
    report = report_of(theirs, {**SMOOTH, "balance": 0.01}, {"smoothing": 0.1, "balance": 0.01})
    assert report.status == "equal", str(report)


@pytest.mark.slow
def test_without_gradients_no_number_is_solved_for(theirs):
    cause = report_of(theirs, {}, {"z": 1e-3}, checks=("forward",)).diverging[0].cause
    assert cause == ""


class TorchTwoHeads(torch.nn.Module):
    """A model that gives its loss itself, and draws."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.drop = torch.nn.Linear(D, D), torch.nn.Linear(D, 1), torch.nn.Dropout(0.25)

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.second(self.drop(h)).square().mean() + 0.5 * h.square().mean()


class TwoHeads(nnx.Module):
    def __init__(self, theirs: TorchTwoHeads):
        self.first, self.second = nnx.Linear(D, D, rngs=nnx.Rngs(0)), nnx.Linear(D, 1, rngs=nnx.Rngs(0))
        self.drop = nnx.Dropout(0.25, rngs=nnx.Rngs(0))
        for mine, its in ((self.first, theirs.first), (self.second, theirs.second)):
            mine.kernel[...], mine.bias[...] = jnp.asarray(its.weight.detach().T), jnp.asarray(its.bias.detach())

    def __call__(self, x: Any) -> Any:
        h = jnp.tanh(self.first(x))
        return jnp.mean(self.second(self.drop(h)) ** 2) + jnp.mean(h**2) * 0.7


def test_the_weight_of_a_part_of_a_loss_that_a_model_in_training_gives_itself():
    theirs = excite(TorchTwoHeads(), seed=4)
    report = compare(
        theirs, TwoHeads(theirs), (noise(6, D, seed=2),), mode="train", checks=("forward", "gradients", "local"), tier="A"
    )
    (row,) = report.diverging
    assert "; jax has 0.7 for 0.5 there" in row.cause, str(report)
