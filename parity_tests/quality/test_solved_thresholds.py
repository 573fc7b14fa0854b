"""Numbers that code compares with, and operations that a port forgot where a tensor read otherwise gives as much."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite

pytestmark = pytest.mark.foreign
X, Y = np.random.default_rng(0).standard_normal((2, 11, 5)).astype(np.float32)


def verdict_of(theirs, ours, *inputs):
    theirs = excite(theirs.eval(), seed=0)
    params = {name: jnp.asarray(x.detach().numpy()) for name, x in theirs.state_dict().items()}
    return compare(theirs, params, inputs, call_jax=ours, tier="A", checks=("forward", "local")).verdict


class Thresholds(torch.nn.Module):
    def forward(self, x, y):
        near = torch.arange(11)[:, None] - torch.arange(11) < 3
        return torch.where(y < 0.1, x, y) * x + (x > 0.3) * y.exp() + near.double() @ x


def thresholds(low=0.1, high=0.3, window=3):
    def ours(params, x, y):
        near = jnp.arange(11)[:, None] - jnp.arange(11) < window
        return jnp.where(y < low, x, y) * x + (x > high) * jnp.exp(y) + near.astype(x.dtype) @ x

    return ours


@pytest.mark.parametrize(
    ("port", "cause"),
    [
        (thresholds(), "EQUAL"),
        (thresholds(low=0.2), "`y < 0.1` about 0.2"),
        (thresholds(low=-0.5), "`y < 0.1` about -0.5"),
        (thresholds(high=0.9), "`x > 0.3` about 0.8"),
    ],
)
def test_thresholds(port, cause):
    """No entry lies between 0.8 and 0.9: they are as much."""
    said = verdict_of(Thresholds(), port, X, Y)
    code, about, number = cause.rpartition(" about ")
    assert f"torch computes {code} (" * bool(about) in said
    assert f"jax compares with another number, such as {number} (" * bool(about) in said
    assert said.startswith("DIFFERENT" if about else "EQUAL")


def test_a_threshold_of_a_mask_is_its_window():
    assert "jax has a window of 7 keys for 3 (" in verdict_of(Thresholds(), thresholds(window=7), X, Y)


def test_a_threshold_beyond_all_numbers_is_none():
    assert "compares with" not in verdict_of(Thresholds(), thresholds(low=1e3), X, Y)


class Negated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(5, 7), torch.nn.Linear(7, 6, bias=False)

    def forward(self, x):
        return torch.sigmoid(-self.b(torch.tanh(self.a(x))))


def test_an_operation_left_out_comes_before_a_tensor_read_otherwise():
    def ours(p, x):
        return jax.nn.sigmoid(jnp.tanh(x @ p["a.weight"].T + p["a.bias"]) @ p["b.weight"].T)

    said = verdict_of(Negated(), ours, X)
    assert "jax leaves it out (" in said
    assert said.endswith("or the same: torch uses b.weight as it is; jax negates it")


class Exponential(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log = torch.nn.Parameter(torch.zeros(5))

    def forward(self, x):
        return torch.tanh(x) * self.log.exp()


def test_no_function_is_named_that_gives_its_operand():
    """Of numbers below 1 a hard tanh does."""
    assert "jax leaves it out (" in verdict_of(Exponential(), lambda p, x: jnp.tanh(x) * p["log"], X)
