"""Words of causes: of changes that give the same array, the smallest is first; a factor is named by its meaning."""

from functools import partial

import pytest
import torch

from jaxformer.parity.diagnose.mutation import Mutation, Target
from jaxformer.parity.diagnose.operators.losses import Z_LOSS
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


class Gate(torch.nn.Module):
    """A gate between two arrays, with a factor of its scores."""

    def __init__(self, function, factor):
        super().__init__()
        self.gate, self.value = torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)
        self.activation = lambda x: function(factor * x if factor != 1 else x)

    def forward(self, x):
        return self.activation(self.gate(x)) * self.value(x) + x


@pytest.mark.parametrize(
    ("function", "factor", "words"),
    [
        (torch.sigmoid, -1, "multiplies its first operand by -1 (1 less its output) (residual"),
        (torch.sigmoid, 3, "multiplies its first operand by 3 (residual"),
        (partial(torch.softmax, dim=-1), 0.5, "multiplies its first operand by 0.5 (a temperature) (residual"),
    ],
)
def test_a_factor_of_an_activations_operand(function, factor, words):
    assert words in cause_between(Gate(function, 1), Gate(function, factor), noise(4, 5, seed=2))


def floored(x):
    return torch.floor(4 * x)


def rounded(x):
    return torch.round(4 * x)


def squared(x):
    return torch.sigmoid(x) ** 2


def powered(x):
    return torch.sigmoid(x) ** 1.5


@pytest.mark.parametrize(
    ("torchs", "jaxs", "words"), [(rounded, floored, "jax has floor there"), (squared, powered, "jax has 1.5 for 2 there")]
)
def test_another_rounding_or_exponent(torchs, jaxs, words):
    assert words in cause_between(Gate(torchs, 1), Gate(jaxs, 1), noise(4, 5, seed=2))


class Branches(torch.nn.Module):
    """Two branches, from each of which something is subtracted."""

    def __init__(self):
        super().__init__()
        self.one, self.other, self.shift = (torch.nn.Linear(5, 5) for _ in range(3))

    def forward(self, x):
        shift = self.shift(x)
        one = self.one(x) - shift
        other = self.other(x) - shift.roll(1, -1)
        return one.tanh() * other.sigmoid()


class Bare(Branches):
    def forward(self, x):
        return self.one(x).tanh() * self.other(x).sigmoid()


def test_what_is_left_out_in_two_branches():
    said = cause_between(Branches(), Bare(), noise(4, 5, seed=2))
    assert "torch computes `self.one(x) - shift` (" in said
    assert "; jax leaves out the second operand of each (residual" in said


class Standardized(torch.nn.Module):
    def forward(self, x):
        return ((x - x.mean()) / (x.std() + 1e-8)).tanh()


class Plain(torch.nn.Module):
    def forward(self, x):
        return x.tanh()


def test_two_operations_that_are_left_out_may_stand_apart():
    said = cause_between(Standardized(), Plain(), noise(4, 5, seed=2))
    assert "torch computes `x - x.mean()` (" in said
    assert ", then `(x - x.mean()) / (x.std() + 1e-8)` (" in said
    assert "; jax does neither (residual" in said


@pytest.mark.parametrize(("number", "words"), [(0.001, "adds 0.001 times"), (-0.001, "leaves out 0.001 times")])
def test_a_z_loss_that_only_one_side_has(number, words):
    mutation = Mutation(Z_LOSS, (Target("loss"),), (("how", "counted"),), value=number)
    assert mutation.words()[1] == f"{words} the mean square of logsumexp (z-loss)"
