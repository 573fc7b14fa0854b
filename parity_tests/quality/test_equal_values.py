"""Code whose values do not show what it does, only its gradients: what JAX's code does otherwise is named."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

B, T, D, V = 3, 5, 4, 7
X, REWARDS = noise(B, T, D), noise(B, seed=2)
IDS = np.random.default_rng(1).integers(0, V, (B, T))


class TorchNet(torch.nn.Module):
    """Chooses one of V units in each place, with the gradient of a softmax."""

    def __init__(self):
        super().__init__()
        self.choice, self.head = torch.nn.Linear(D, V), torch.nn.Linear(V, V)

    def forward(self, x):
        logits = self.choice(x)
        soft = (logits / 0.5).softmax(-1)
        hard = torch.nn.functional.one_hot(logits.argmax(-1), V).to(soft.dtype)
        return self.head(hard + soft - soft.detach())


def torch_loss(model: TorchNet, x: Any, ids: Any, rewards: Any) -> Any:
    """A policy loss at its first step: every ratio is 1, and the advantages sum to 0."""
    log_p = model(x).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    gains = (rewards - rewards.mean()) / (rewards.std() + 1e-2)
    ratio = (log_p - log_p.detach()).exp()
    return -(ratio * gains[:, None]).mean() - 0.1 * log_p.mean()


def jax_loss(*, temperature: float = 0.5, ddof: int = 1, epsilon: float = 1e-2, sign: int = 1) -> Callable[..., Any]:
    def call(p: Any, x: Any, ids: Any, rewards: Any) -> Any:
        logits = x @ p["choice.weight"].T + p["choice.bias"]
        soft = jax.nn.softmax(logits / temperature)
        hard = jax.nn.one_hot(logits.argmax(-1), V)
        logits = (hard + soft - jax.lax.stop_gradient(soft)) @ p["head.weight"].T + p["head.bias"]
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)[..., 0]
        gains = (rewards - rewards.mean()) / (rewards.std(ddof=ddof) + epsilon)
        ratio = jnp.exp(log_p - jax.lax.stop_gradient(log_p))
        return -(ratio * sign * gains[:, None]).mean() - 0.1 * log_p.mean()

    return call


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a biased deviation": ({"ddof": 0}, "`rewards.std()` (FILE); jax divides by n (biased)"),
    "another epsilon": ({"epsilon": 1e-4}, "`rewards.std() + 1e-2` (FILE); jax has 0.0001 for 0.01 there"),
    "the other sign": ({"sign": -1}, ", or the same: "),
    "no temperature": ({"temperature": 1.0}, "`logits / 0.5` (FILE); jax leaves it out"),
}


@pytest.fixture(scope="module")
def torch_model() -> TorchNet:
    return excite(TorchNet(), seed=1).eval()


def compared(torch_model: TorchNet, call_jax: Callable[..., Any]) -> Any:
    params = {name: parameter.detach().numpy() for name, parameter in torch_model.named_parameters()}
    given = {"call_torch": torch_loss, "call_jax": call_jax, "tier": "A", "checks": ("forward", "gradients")}
    return compare(torch_model, params, (X, IDS, REWARDS), **given)


@pytest.mark.parametrize("case", usually(CASES, "a biased deviation"))
def test_what_gradients_alone_show_is_named(torch_model, case):
    otherwise, says = CASES[case]
    report = compared(torch_model, jax_loss(**otherwise))
    assert report.stages[0].status == "equal"
    cause = re.sub(rf"{re.escape(Path(__file__).name)}:\d+", "FILE", report.diverging[0].cause)
    assert says in cause
    assert "with d = " not in cause, "a formula of ratios that are all 1"


def test_the_same_loss_is_equal(torch_model):
    assert not compared(torch_model, jax_loss()).diverging
