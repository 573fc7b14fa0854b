"""Causes in which of their arrays modules are given, in code without taps."""

import pytest
import torch
from torch import nn

from parity_tests.support.helpers import noise
from parity_tests.support.searches import cause_between

D = 5


class Updates(nn.Module):
    """A state that two cells update, each by what a layer makes of it."""

    def __init__(self):
        super().__init__()
        self.cells, self.layers = (nn.ModuleList(map(kind, (D, D), (D, D))) for kind in (nn.GRUCell, nn.Linear))

    def forward(self, x):
        for number, (cell, layer) in enumerate(zip(self.cells, self.layers, strict=True)):
            x = cell(*self.given(layer(x), x, number))
        return x

    def given(self, made, x, number):
        return made, x


class Exchanged(Updates):
    def given(self, made, x, number):
        return x, made


class ExchangedOnce(Updates):
    def given(self, made, x, number):
        return (made, x) if number else (x, made)


class StateOfItsInput(Updates):
    def given(self, made, x, number):
        return made, made


CAUSES = {
    Exchanged: "torch passes cells.* its own arguments; jax exchanges its first two arguments (",
    ExchangedOnce: "torch passes cells.0 its own arguments; jax exchanges its first two arguments (",
    StateOfItsInput: "torch passes cells.* its own arguments; jax passes its first array for its second too (",
}


@pytest.mark.parametrize("port", CAUSES)
def test_causes_of_given_arrays(port):
    assert CAUSES[port] in cause_between(Updates(), port(), noise(3, D, seed=1), tapped=False)


class Biased(nn.Module):
    """Attention with a bias of each distance."""

    def __init__(self):
        super().__init__()
        self.q, self.v, self.table = nn.Linear(D, D), nn.Linear(D, D), nn.Parameter(torch.zeros(2 * D - 1, 1))

    def forward(self, x):
        q = self.q(x)
        places = torch.arange(x.shape[1])
        bias = self.table[places[:, None] - places + D - 1]
        return (q @ q.mT + self.turned(bias)).softmax(-1) @ self.moved(self.v(x))

    def moved(self, values):
        return values

    def turned(self, bias):
        return bias.permute(2, 0, 1)


class Transposed(Biased):
    def turned(self, bias):
        return bias.permute(2, 1, 0)


def test_a_transposed_bias_is_not_told_as_reversed_positions():
    """Attention from the last position to the first gives the same."""
    cause = cause_between(Biased(), Transposed(), noise(3, D, D, seed=1))
    assert "self.table[places[:, None] - places + D - 1]`" in cause
    assert "(a transposition)" in cause


class Rolled(Biased):
    def moved(self, values):
        return values.roll(1, 1)


def test_what_a_layer_gives_is_named_by_its_call():
    cause = cause_between(Biased(), Rolled(), noise(3, D, D, seed=1))
    assert cause.startswith("torch computes `self.v(x)` (test_given_arrays.py:67); jax has it one later along axis 1")
