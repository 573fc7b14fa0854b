"""Causes in a model that is told a time: waves, a shared activation, six parts of one row, heads that are packed by head."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign
B, T, D, N, H, WAVES = 2, 5, 8, 2, 4, 3


class OwnGelu(torch.nn.Module):
    """By a tanh, as somebody wrote it."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.qkv, self.mlp = torch.nn.Linear(2 * WAVES, D), torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)
        self.six = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(D, 6 * D))
        self.out, self.act = torch.nn.Linear(D, 2 * D), OwnGelu()

    def forward(self, x, time):
        rates = torch.exp(-math.log(10000.0) * torch.arange(WAVES) / WAVES)
        angles = time[:, None] * rates
        c = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        a, b, g, d, e, h = self.six(c)[:, None].chunk(6, -1)
        qkv = self.qkv(x * (1 + a) + b).view(B, T, N, 3, H)
        q, k, v = (each.transpose(1, 2) for each in (qkv[..., 0, :], qkv[..., 1, :], qkv[..., 2, :]))
        slopes = torch.pow(torch.tensor(0.5), torch.arange(1, N + 1))
        x = x + g * (q * k.sigmoid() + slopes[:, None, None] * v).transpose(1, 2).flatten(2)
        x = x + h * self.act(self.mlp(x * (1 + d) + e))
        shift, scale = self.out(torch.nn.functional.silu(c))[:, None].chunk(2, -1)
        return x * (1 + scale) + shift


def port(bug: str) -> Any:
    def linear(p, name, x):
        return tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])

    def forward(p, x, time):
        rates = jnp.exp(-math.log(1000.0 if bug == "base" else 10000.0) * jnp.arange(WAVES) / WAVES)
        angles = time[:, None] * rates
        c = linear(p, "time", jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], -1))
        six = linear(p, "six.1", jax.nn.silu(c))[:, None]
        a, b, g, d, e, h = six.reshape(B, 1, D, 6).transpose(3, 0, 1, 2) if bug == "turns" else jnp.split(six, 6, -1)
        qkv = linear(p, "qkv", x * (1 + a) + b)
        qkv = qkv.reshape(B, T, 3, N, H).swapaxes(2, 3) if bug == "blocks" else qkv.reshape(B, T, N, 3, H)
        order = (0, 2, 1) if bug == "order" else range(3)
        q, k, v = (qkv[..., i, :].swapaxes(1, 2) for i in order)
        slopes = jnp.array([0.5, 0.125]) if bug == "slopes" else 0.5 ** jnp.arange(1, N + 1)
        x = x + g * (q * jax.nn.sigmoid(k) + slopes[:, None, None] * v).swapaxes(1, 2).reshape(B, T, D)
        y = linear(p, "mlp", x * (1 + d) + e)
        waved = 0.5 * y * (1 + jnp.tanh(0.79788456 * y * (1 + 0.044715 * y * y)))
        x = x + h * (jax.nn.gelu(y, approximate=False) if bug == "erf" else waved)
        shift, scale = jnp.split(linear(p, "out", c if bug == "active" else jax.nn.silu(c))[:, None], 2, -1)
        return x * (1 + scale) + shift

    return forward


CAUSES = {
    "base": "jax has -6.90775528 = -log(1000) for -9.21034037 there",
    "turns": "jax packs one entry of each in turns",
    "blocks": "jax reshapes axes 2 and 3 as (",
    "order": "and those beside it in order; jax takes them in the order 0, 2, 1",
    "slopes": "jax has 0.5, 0.125",
    "erf": "torch act OwnGelu; jax act gelu (residual",
    "active": "`torch.nn.functional.silu(c)` (test_causes_in_conditioning.py:44); jax leaves it out",
}


@pytest.fixture(scope="module")
def theirs():
    return excite(Theirs().eval(), seed=1)


def report_of(theirs: Any, bug: str) -> Any:
    params = {name: jnp.asarray(x.detach().numpy()) for name, x in theirs.state_dict().items()}
    inputs = noise(B, T, D, seed=1), 5 + noise(B, seed=2)
    return compare(theirs, params, inputs, call_jax=port(bug), tier="A", checks=("forward", "local"))


def test_the_port_is_equal(theirs):
    assert report_of(theirs, "").status == "equal"


@pytest.mark.parametrize("bug", usually(CAUSES, "blocks", "slopes", "active"))
def test_causes(theirs, bug):
    assert CAUSES[bug] in report_of(theirs, bug).verdict
