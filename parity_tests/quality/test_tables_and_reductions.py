"""Rows that are added at the positions of a text, positions that are taken, reductions that are left out, numbers that are used
otherwise: torch's code, changed, is its own port.
"""

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


class Taken(torch.nn.Module):
    """The state at one position of each row, as CLIP's text encoder takes that of the end of a text."""

    def __init__(self, place):
        super().__init__()
        self.inner, self.place = torch.nn.Linear(D, D), place

    def forward(self, x):
        return self.inner(x)[torch.arange(B), self.place(x)]


def test_other_positions_of_the_rows():
    port = Taken(lambda x: torch.tensor([4, 0, 2]))
    says = cause_between(Taken(lambda x: torch.tensor([1, 0, 3])), port, X)
    assert "torch takes positions 1, 0, 3 of the rows in `" in says
    assert "jax takes positions 4, 0, 2 (residual " in says


class Gelu(torch.nn.Module):
    def __init__(self, scaled):
        super().__init__()
        self.scaled = scaled

    def forward(self, x):
        return x * torch.tanh(self.scaled(x) * (1 + 0.04 * x * x))


def test_a_number_that_is_used_otherwise():
    theirs = Gelu(lambda x: 0.79 * x)
    assert "jax divides 0.79 by it" in cause_between(theirs, Gelu(lambda x: 0.79 / x), X)
    assert "jax adds 0.79 to it" in cause_between(theirs, Gelu(lambda x: 0.79 + x), X)


class Ids(torch.nn.Module):
    """Whole numbers, of two that it has."""

    def __init__(self, gives):
        super().__init__()
        self.gives = gives

    def forward(self, x):
        ids, valid = (10 * x).long(), (x > 0).long()
        return self.gives(ids, valid)


def test_whole_numbers_in_place_of_others():
    theirs = Ids(lambda ids, valid: ids)
    assert "jax uses `x > 0`" in cause_between(theirs, Ids(lambda ids, valid: valid), X)
    assert "jax has 7 everywhere" in cause_between(theirs, Ids(lambda ids, valid: torch.full_like(ids, 7)), X)


class Attention(torch.nn.Module):
    """Attention to the first keys of each row; `lengths` None: to all."""

    def __init__(self, lengths):
        super().__init__()
        self.keys, self.lengths = torch.nn.Linear(D, D), lengths

    def forward(self, x):
        scores = x @ self.keys(x).mT
        if self.lengths is not None:
            scores = scores.masked_fill(torch.arange(T) >= torch.tensor(self.lengths)[:, None, None], -torch.inf)
        return scores.softmax(-1) @ x


def test_rows_of_other_lengths():
    says = cause_between(Attention([5, 2, 3]), Attention([4, 2, 5]), X)
    assert "torch shows 5, 2 and 3 keys in the rows, by `" in says
    assert "jax shows 4, 2 and 5 keys in the rows (residual " in says
    assert "jax shows 4, 2 and 1 keys in the rows" in cause_between(Attention(None), Attention([4, 2, 1]), X)


class Padded(torch.nn.Module):
    """States that are 0 behind the rows' lengths."""

    def __init__(self, lengths):
        super().__init__()
        self.inner, self.lengths = torch.nn.Linear(D, D), lengths

    def forward(self, x):
        return self.inner(x) * (torch.arange(T) < torch.tensor(self.lengths)[:, None])[..., None]


def test_rows_that_are_0_behind_their_lengths():
    says = cause_between(Padded([5, 4, 3]), Padded([3, 4, 2]), X)
    assert "jax has 0 behind 3, 4 and 2 positions in the rows" in says


class Turned(torch.nn.Module):
    """Two arrays times the same numbers, as queries and keys are times cosines."""

    def __init__(self):
        super().__init__()
        self.one, self.other = torch.nn.Linear(D, D), torch.nn.Linear(D, D)

    def forward(self, x):
        by = 2 + torch.arange(D).cos().to(x.dtype)
        return (self.one(x) * by @ (self.other(x) * by).mT).softmax(-1) @ x


class Divided(Turned):
    def forward(self, x):
        by = 2 + torch.arange(D).cos().to(x.dtype)
        return (self.one(x) / by @ (self.other(x) / by).mT).softmax(-1) @ x


def test_operations_that_share_an_operand_are_changed_together():
    says = cause_between(Turned(), Divided(), X)
    assert "torch computes `self.one(x) * by`" in says
    assert "and `self.other(x) * by`" in says
    assert "jax divides the first by the second" in says
