"""Masks that are handed to a module, in whatever way they are said."""

import math

import numpy as np
import pytest

from jaxformer.parity.given_masks import explain_masks
from parity_tests.helpers import B, N, S, T

VALID = np.arange(S) < np.array([S, 3, 5, S - 1, 0])[:, None]
CAUSAL = np.tri(T, S, dtype=bool)
OURS = CAUSAL & VALID[:, None, None]
SAME = {
    "True where one attends": [OURS],
    "True where one does not": [~OURS],
    "added": [np.where(OURS, 0.0, -math.inf)],
    "added, the lowest number": [np.where(OURS, 0.0, np.finfo(np.float64).min)],
    "two of them, in two ways": [CAUSAL, np.where(VALID, 0.0, -1e9)],
    "the same for each head": [np.repeat(OURS, N, 1)],
    "rows without keys that see everything": [OURS | ~OURS.any(-1, keepdims=True)],
    "none": [],
    "no mask at all": [np.zeros((B, T, S))],
}


@pytest.mark.parametrize("way", SAME)
def test_the_same_mask_said_in_another_way(way):
    assert explain_masks([OURS], SAME[way]) == ""


def test_another_mask():
    other = OURS.copy()
    other[1, 0, 4, 0] = False
    for theirs in (other, ~other, np.where(other, 0.0, -1e4)):
        assert explain_masks([OURS], [theirs]) == f"the mask that it is given differs from torch's in 1 of {B * T * S} entries"
