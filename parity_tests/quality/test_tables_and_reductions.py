"""Rows that are added at the positions of a text, and reductions that are left out: torch's code, changed, is its own port."""

import numpy as np
import torch

from parity_tests.support.helpers import noise
from parity_tests.support.searches import cause_between

B, T, D = 3, 5, 6
X = noise(B, T, D, seed=3)


class Rows(torch.nn.Module):
    """Rows of a table that no module holds, as a formula gives them."""

    def __init__(self, base):
        super().__init__()
        rates = base ** -(torch.arange(D) / D)
        self.inner, self.rows = torch.nn.Linear(D, D), torch.arange(T)[:, None] * rates

    def forward(self, x):
        return self.inner(x) + torch.sin(self.rows[: x.shape[1]].double() ** 2)


class Norm(torch.nn.Module):
    def __init__(self, reduces):
        super().__init__()
        self.gain, self.reduces = torch.nn.Parameter(torch.ones(D)), reduces

    def forward(self, x):
        squares = x * x
        mean = squares.mean(-1, keepdim=True) if self.reduces() else squares
        return x * torch.rsqrt(mean + 1e-5) * self.gain


def test_other_rows_at_the_positions():
    says = cause_between(Rows(50.0), Rows(7.0), X)
    assert "torch has the rows of `" in says
    assert "jax has others, which differ by " in says


def test_a_difference_that_is_not_the_same_in_all_the_batch_is_of_no_rows():
    class Product(Rows):
        def forward(self, x):
            return super().forward(x) * (1 + 0.1 * x.cos().sin().cos())

    assert "jax has others" not in cause_between(Rows(50.0), Product(50.0), X)


def test_a_batch_of_one_text_proves_nothing():
    same = np.broadcast_to(X[:1], X.shape).copy()
    assert "jax has others" not in cause_between(Rows(50.0), Rows(7.0), same)


def test_a_reduction_left_out():
    assert "jax does not reduce: it takes each entry by itself" in cause_between(Norm(lambda: True), Norm(lambda: False), X)
