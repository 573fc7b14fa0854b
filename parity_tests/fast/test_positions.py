import math

import numpy as np
import pytest

import torch_ref.nn.positions as theirs
from jaxformer.nn.positions import TABLES, sinusoid, sinusoid_blocks
from jaxformer.parity.numerics.metrics import check_float64
from parity_tests.support.helpers import D


@pytest.mark.parametrize("width", [D, D + 1, 1], ids=["even", "odd", "one"])
@pytest.mark.parametrize("name", TABLES)
def test_the_table_equals_torchs(name, width):
    check_float64(name, TABLES[name](71, width), theirs.TABLES[name](71, width))


@pytest.mark.parametrize("width", [6, 7])
def test_the_table_follows_the_papers_formula(width):
    table = sinusoid(9, width)
    for position in range(9):
        for i in range(width):
            angle = position * math.exp(-math.log(10000) * (i - i % 2) / width)
            assert math.isclose(table[position, i], math.cos(angle) if i % 2 else math.sin(angle), abs_tol=1e-14)


def test_an_odd_width_ends_on_a_sine():
    assert sinusoid(5, 3)[4, 2] == np.sin(4 / 10000 ** (2 / 3))


@pytest.mark.parametrize("width", [6, 7])
def test_in_blocks_all_sines_come_first(width):
    table, sines = sinusoid_blocks(9, width), (width + 1) // 2
    for position in range(9):
        for column in range(width):
            angle = position * math.exp(-math.log(10000) * 2 * (column % sines) / width)
            expected = math.sin(angle) if column < sines else math.cos(angle)
            assert math.isclose(table[position, column], expected, abs_tol=1e-14)
