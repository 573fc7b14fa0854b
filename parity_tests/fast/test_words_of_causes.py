"""Of two changes that give the same array, the smaller one is named first."""

import pytest
import torch

from parity_tests.support.helpers import noise
from parity_tests.support.searches import cause_between


class Sloped(torch.nn.Module):
    """A layer and an activation whose slope is a number of the code."""

    def __init__(self, slope, times=1):
        super().__init__()
        self.mix = torch.nn.Linear(5, 5)
        self.activation = lambda x: torch.nn.functional.leaky_relu(x, slope)
        self.times = range(times)

    def forward(self, x):
        y = self.mix(x)
        for _ in self.times:
            y = self.activation(y)
        return x + y


@pytest.mark.parametrize("slope", [0.1, 0.2])
def test_another_slope_before_a_second_activation(slope):
    """Twice with slope 0.1 is once with 0.01."""
    said = cause_between(Sloped(slope), Sloped(slope**2), noise(4, 5, seed=2))
    number, _, added = said.partition(", or the same: ")
    assert f"jax has negative_slope {slope**2:.2g} for {slope} there (residual" in number
    assert added == "torch uses mix as it is; jax applies leaky_relu to it"
