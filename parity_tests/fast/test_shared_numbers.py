"""One number that several places hold, and that a port has otherwise in some of them."""

import numpy as np
import pytest
import torch

from jaxformer.parity.diagnose.solve import that_differ
from parity_tests.support.helpers import noise
from parity_tests.support.searches import cause_between

WIDTH, LAYERS = 6, 3
X = noise(2, 4, WIDTH, seed=3)


class Norm(torch.nn.Module):
    """RMSNorm with its epsilon in the code, which a port may have otherwise."""

    def __init__(self):
        super().__init__()
        self.weight, self.more = torch.nn.Parameter(torch.ones(WIDTH)), lambda: 0.0

    def forward(self, x):
        moment = x.square().mean(-1, keepdim=True)
        with torch._C.DisableTorchFunction():
            moment = moment + self.more()
        return self.weight * x / torch.sqrt(moment + 1e-5)


class Net(torch.nn.Module):
    def __init__(self, *otherwise):
        super().__init__()
        self.first, self.second = (torch.nn.ModuleList([Norm() for _ in range(LAYERS)]) for _ in range(2))
        self.mix = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])
        for name in otherwise:
            self.get_submodule(name).more = lambda: 1e-3 - 1e-5

    def forward(self, x):
        for first, second, mix in zip(self.first, self.second, self.mix, strict=True):
            x = x + second(torch.tanh(mix(first(x))))
        return x


@pytest.mark.parametrize(
    ("otherwise", "places"),
    [
        (("second.0", "second.1", "second.2"), "second.*"),
        (("first.0", "first.1", "first.2", "second.0", "second.2"), "first.* and second.0 and second.2"),
    ],
    ids=["the second of each layer", "all but one"],
)
def test_epsilons_in_some_norms(otherwise, places):
    says = cause_between(Net(), Net(*otherwise), X, tapped=False)
    assert says.startswith("torch 1e-05 for `moment + 1e-5` (test_shared_numbers.py:")
    assert f") of {places}; jax 0.001 (residual " in says


class Refusing(torch.nn.Module):
    """A module that takes no rate above 1."""

    def __init__(self):
        super().__init__()
        self.rate = 0.6

    def forward(self, x):
        if self.rate > 1:
            raise ValueError("rate above 1")
        return self.rate * x.sin()


def test_a_number_that_the_code_refuses_ends_no_search():
    model, port = (torch.nn.Sequential(*(Refusing() for _ in range(LAYERS))) for _ in range(2))
    port[1].forward = lambda x: 0.6 * x.tan()
    assert cause_between(model, port, X, tapped=False) == ""


def test_numbers_that_differ_are_told_from_their_effects():
    torchs, effects = np.ones(20), np.random.default_rng(0).normal(size=(4, 20))
    jax = torchs + 3.0 * (effects[1] + effects[2])
    assert that_differ([*torchs + effects], torchs, jax) == [1, 2]
    assert that_differ([*torchs + effects], torchs, jax + noise(20, seed=1)) == []
    assert that_differ([*torchs + effects, None], torchs, jax) == []
