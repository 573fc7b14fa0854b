import math

import numpy as np
import pytest

import torch_ref.nn.positions as theirs
from jaxformer.nn.positions import sinusoid
from jaxformer.parity.measure import check_float64
from parity_tests.helpers import D


@pytest.mark.parametrize("width", [D, D + 1, 1], ids=["even", "odd", "one"])
def test_the_table_equals_torchs(width):
    check_float64("sinusoid", sinusoid(71, width), theirs.sinusoid(71, width))


@pytest.mark.parametrize("width", [6, 7])
def test_the_table_follows_the_papers_formula(width):
    table = sinusoid(9, width)
    for position in range(9):
        for i in range(width):
            angle = position * math.exp(-math.log(10000) * (i - i % 2) / width)
            assert math.isclose(table[position, i], math.cos(angle) if i % 2 else math.sin(angle), abs_tol=1e-14)


def test_an_odd_width_ends_on_a_sine():
    assert sinusoid(5, 3)[4, 2] == np.sin(4 / 10000 ** (2 / 3))
