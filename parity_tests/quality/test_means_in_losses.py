"""A loss of several terms, each a mean by the same mask: what one of them, or all, does otherwise is named."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

B, T, D, V = 3, 5, 4, 7
X, RETURNS, GAINS = noise(B, T, D), noise(B, T, seed=2), noise(B, T, seed=3)
IDS = np.random.default_rng(1).integers(0, V, (B, T))
MASK = (np.arange(T) < np.array([[5], [2], [3]])).astype(np.float64)


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.value = torch.nn.Linear(D, V), torch.nn.Linear(D, 1)

    def forward(self, x):
        return self.head(x), self.value(x)[..., 0]


@pytest.fixture(scope="module")
def torch_model() -> TorchNet:
    return excite(TorchNet(), seed=1).eval()


def torch_loss(model: TorchNet, x: Any, ids: Any, gains: Any, returns: Any, mask: Any) -> Any:
    """A clipped policy loss, an error of values, and an entropy."""

    def mean(each: Any) -> Any:
        return (each * mask).sum() / (mask.sum() + 1e-8)

    logits, values = model(x)
    log_p = logits.log_softmax(-1)
    ratio = (log_p.gather(-1, ids[..., None])[..., 0] + 2).exp()
    policy = torch.max(-gains * ratio, -gains * ratio.clamp(1 - 0.4, 1 + 0.4))
    entropy = -(log_p.exp() * log_p).sum(-1)
    errors = (values - returns).square()[mask > 0]
    return mean(policy) + 0.5 * errors.mean() - 0.1 * mean(entropy) + 0.3 * values.square().mean()


def mean_of(x: Any, kept: Any = MASK) -> Any:
    return (x * kept).sum() / (kept.sum() + 1e-8)


def jax_loss(
    *,
    policy: Callable[[Any], Any] = mean_of,
    value: Callable[[Any], Any] = lambda x: (x * MASK).sum() / MASK.sum(),
    entropy: Callable[[Any], Any] = mean_of,
    squares: Callable[[Any], Any] = jnp.mean,
    clip: float = 0.4,
    larger: Any = jnp.maximum,
    ready: Callable[[Any], Any] = lambda gains: gains,
    error: Any = jnp.square,
    weights: tuple[float, float] = (0.5, 0.3),
) -> Callable[..., Any]:
    def call(p: Any, x: Any, ids: Any, gains: Any, returns: Any, mask: Any) -> Any:
        log_p = jax.nn.log_softmax(x @ p["head.weight"].T + p["head.bias"])
        values = (x @ p["value.weight"].T + p["value.bias"])[..., 0]
        ratio = jnp.exp(jnp.take_along_axis(log_p, ids[..., None], -1)[..., 0] + 2)
        gains = ready(gains)
        each = larger(-gains * ratio, -gains * jnp.clip(ratio, 1 - clip, 1 + clip))
        terms = value(error(values - returns)), squares(values**2)
        return policy(each) - 0.1 * entropy(-(jnp.exp(log_p) * log_p).sum(-1)) + weights[0] * terms[0] + weights[1] * terms[1]

    return call


def rows_first(x: Any) -> Any:
    return ((x * MASK).sum(1) / (MASK.sum(1) + 1e-8)).mean()


LATER = np.roll(MASK, 1, 1) * (np.arange(T) > 0)
EVERY = "the mean of all 15 entries (without the mask)"
MEAN = "`(each * mask).sum() / (mask.sum() + 1e-8)` (FILE)"
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "one without the mask": ({"value": jnp.mean}, f"errors.mean()` (FILE); jax takes {EVERY}"),
    "all without the mask": (
        {"policy": jnp.mean, "entropy": jnp.mean},
        f"(FILE) in `mean(policy)` and {MEAN} in `mean(entropy)`; jax takes {EVERY}",
    ),
    "a mask where torch has none": (
        {"squares": mean_of},
        "square().mean()` (FILE); jax takes the mean of the entries that input",
    ),
    "divided by all": ({"value": lambda x: (x * MASK).mean()}, "jax divides the sum by the number of all entries, 15"),
    "a sum": ({"squares": jnp.sum}, "square().mean()` (FILE); jax takes the sum, without a mean"),
    "rows first": ({"entropy": rows_first}, "in `mean(entropy)`; jax takes the mean of each of 3 rows first, then over rows"),
    "by rows": ({"policy": lambda x: (x * MASK).sum() / B}, "jax divides the sum by the number of rows, 3"),
    "the mask later": ({"policy": lambda x: mean_of(x, LATER)}, "with the mask one later, 0 at the beginning of each row"),
    "without the first": ({"squares": lambda x: x[:, 1:].mean()}, "without the first entry of each of 3 rows"),
    "the other mask": ({"value": lambda x: mean_of(x, 1 - MASK) * (1 + 1e-8 / 5)}, "of the entries that the mask hides"),
    "gains standardized": (
        {"ready": lambda x: (x - x.mean()) / (x.std() + 1e-8)},
        "torch uses input 2 of the call as it is; jax standardizes it: (x - mean) / (std + 1e-08), with ddof 0",
    ),
    "gains standardized by rows": (
        {"ready": lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, ddof=1, keepdims=True)},
        "jax standardizes each row of it: (x - mean) / (std + 0), with ddof 1",
    ),
    "another clip": ({"clip": 0.2}, "to 1 +- 0.4; jax limits it to 1 +- 0.2"),
    "the smaller": ({"larger": jnp.minimum}, "jax takes the smaller (`minimum`)"),
    "absolute errors": ({"error": jnp.abs}, "`(values - returns).square()` (FILE); jax has abs there"),
    "a weight that makes a sum of a mean": ({"weights": (0.5, 4.5)}, "; jax has 4.5 for 0.3 there"),
    "weights exchanged": ({"weights": (0.3, 0.5)}, "jax has 0.3 for 0.5 in "),
}


@pytest.mark.parametrize("case", usually(CASES, "one without the mask", "all without the mask", "rows first", "another clip"))
def test_what_a_term_does_otherwise_is_named(torch_model, case):
    otherwise, says = CASES[case]
    assert says in cause_of(torch_model, torch_loss, jax_loss(**otherwise))


def cause_of(torch_model: TorchNet, call_torch: Any, call_jax: Any) -> str:
    """Cause that a comparison names, with FILE for this file and its lines."""
    params = {name: parameter.detach().numpy() for name, parameter in torch_model.named_parameters()}
    given = {"call_torch": call_torch, "call_jax": call_jax, "tier": "A", "checks": ("forward", "gradients")}
    report = compare(torch_model, params, (X, IDS, GAINS, RETURNS, MASK), **given)
    return re.sub(rf"{re.escape(Path(__file__).name)}:\d+", "FILE", report.diverging[0].cause)


def torch_preference(model: TorchNet, x: Any, ids: Any, gains: Any, returns: Any, mask: Any) -> Any:
    """How much likelier sequences are than others, beside a cross-entropy of each row."""
    logits = model(x)[0]
    scores = (logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0] * mask).sum(-1)
    margins = scores - 9 * returns.mean(-1)
    entropy = functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="sum") / len(x)
    return -functional.logsigmoid(0.1 * margins).mean() + entropy


def jax_preference(
    *, factor: float = 0.1, divisor: Any = 1.0, rows: int = B, of_margin: Any = lambda d: -jax.nn.log_sigmoid(d)
) -> Callable[..., Any]:
    def call(p: Any, x: Any, ids: Any, gains: Any, returns: Any, mask: Any) -> Any:
        log_p = jax.nn.log_softmax(x @ p["head.weight"].T + p["head.bias"])
        own = jnp.take_along_axis(log_p, ids[..., None], -1)[..., 0]
        margins = (own * mask).sum(-1) / divisor - 9 * returns.mean(-1)
        return of_margin(factor * margins).mean() - own.sum() / rows

    return call


PREFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "a factor that several numbers fit": ({"factor": 0.5}, "`0.1 * margins` (FILE); jax has 0.5 for 0.1 there"),
    "sums that become means": ({"divisor": MASK.sum(-1)}, "jax divides each sum by the number of entries that its mask keeps"),
    "a hinge": ({"of_margin": lambda d: jax.nn.relu(1 - d)}, "jax has -(max(0, 1 - d)) there, with d = `0.1 * margins` (FILE)"),
    "smoothed labels": (
        {"of_margin": lambda d: -0.8 * jax.nn.log_sigmoid(d) - 0.2 * jax.nn.log_sigmoid(-d)},
        "jax has -((1 - 0.2) log(1 + exp(-d)) + 0.2 log(1 + exp(d))) there",
    ),
    "another divisor, which is no number of rows": ({"rows": 5}, "jax multiplies the result by 0.6"),
    "a mean for a sum of each row": ({"rows": B * T}, "(FILE); jax takes the mean (residual"),
}


@pytest.mark.parametrize("case", usually(PREFERENCES, "a factor that several numbers fit"))
def test_what_a_loss_of_sums_does_otherwise_is_named(torch_model, case):
    otherwise, says = PREFERENCES[case]
    assert says in cause_of(torch_model, torch_preference, jax_preference(**otherwise))


def torch_pairs(model: TorchNet, x: Any, ids: Any, gains: Any, returns: Any, mask: Any) -> Any:
    """How much likelier sequences are than by a reference."""
    own = model(x)[0].log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    return -functional.logsigmoid((own * mask).sum(-1) - (returns * mask).sum(-1)).mean()


def jax_pairs(p: Any, x: Any, ids: Any, gains: Any, returns: Any, mask: Any) -> Any:
    """Mean likelihoods in place of both sums."""
    log_p = jax.nn.log_softmax(x @ p["head.weight"].T + p["head.bias"])
    own = jnp.take_along_axis(log_p, ids[..., None], -1)[..., 0]
    return -jax.nn.log_sigmoid(((own - returns) * mask).sum(-1) / mask.sum(-1)).mean()


def test_two_sums_of_each_row_become_means_together(torch_model):
    cause = cause_of(torch_model, torch_pairs, jax_pairs)
    assert "`(own * mask).sum(-1)` (FILE) and `(returns * mask).sum(-1)` (FILE); jax divides each sum by the number" in cause
