"""Two differences in one stretch of code: both are named, where no single change gives the port's array."""

import pytest
import torch

from jaxformer.parity.runs.session import Session
from parity_tests.support.helpers import noise
from parity_tests.support.searches import cause_between

WIDTH = 6
X = noise(3, 5, WIDTH, seed=3)


class Layer(torch.nn.Module):
    """A layer with three things that a port may have otherwise."""

    def __init__(self, approximate="none", epsilon=1e-5, scale=0.5):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(WIDTH, 8), torch.nn.Linear(8, WIDTH), torch.nn.LayerNorm(WIDTH)
        self.act = lambda x: torch.nn.functional.gelu(x, approximate=approximate)
        self.other_epsilon, self.scaled = lambda: epsilon, lambda x: x * scale

    def forward(self, x):
        x = x + self.scaled(self.down(self.act(self.up(x))))
        return torch.nn.functional.layer_norm(x, (WIDTH,), self.norm.weight, self.norm.bias, self.other_epsilon())


GELU, EPSILON, SCALE = "gelu by tanh there", "eps 0.001 for 1e-05 there", "has 0.7 for 0.5 there"
PORTS = {
    "a function and a number": ({"approximate": "tanh", "epsilon": 1e-3}, (GELU, EPSILON)),
    "a function and a large number": ({"approximate": "tanh", "scale": 0.7}, (GELU, SCALE)),
    "two numbers": ({"epsilon": 1e-3, "scale": 0.7}, (EPSILON, SCALE)),
}


@pytest.mark.parametrize("port", PORTS)
def test_two_differences(port):
    how, causes = PORTS[port]
    says = cause_between(Layer(), Layer(**how), X, tapped=False)
    assert says.count("; beside it, torch ") == 1, says
    assert "fit too" not in says
    for cause in causes:
        assert cause in says


def test_two_differences_are_tried_first_elsewhere():
    session, spent, says = Session(seconds=600.0), [], []
    for _ in range(2):
        left = session.left
        says.append(cause_between(Layer(), Layer("tanh", 1e-3), X, tapped=False, session=session))
        spent.append(left - session.left)
    assert says[0] == says[1] != ""
    assert spent[1] < spent[0] / 10


def test_of_three_differences_no_two_are_named():
    assert cause_between(Layer(), Layer("tanh", 1e-3, 0.7), X, tapped=False) == ""


def test_one_difference_is_named_alone():
    says = cause_between(Layer(), Layer("tanh"), X, tapped=False)
    assert GELU in says
    assert "beside" not in says
