"""A cause is looked for in one row of a batch, and holds for all of them."""

import numpy as np

from jaxformer.parity.causes import explain
from jaxformer.parity.hypotheses import Evidence
from parity_tests.helpers import noise

B, T, D = 3, 5, 8


def normed(x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def at_hand(**before):
    return Evidence(before, (), {"scale": np.ones(D)}, {})


def test_what_holds_for_one_row_alone_is_no_cause():
    x = noise(B, T, D, seed=1).astype(np.float64)
    ours, theirs = normed(x, 1e-6), normed(x, 1e-5)
    assert explain(at_hand(input=x), ours, theirs, {}).startswith("torch epsilon 1e-05; jax epsilon 1e-06 (residual ")
    others = np.square(theirs).sum((1, 2)) < np.square(theirs).sum((1, 2)).max()
    theirs[others] *= 0.9
    assert explain(at_hand(input=x), ours, theirs, {}) == ""


def test_one_array_for_all_rows():
    q, k, v = noise(1, T, D, seed=1), noise(B, T, D, seed=2), noise(B, T, D, seed=3)
    assert explain(at_hand(q=q, k=k, v=v), noise(B, T, D, seed=4), noise(B, T, D, seed=5), {}) == ""
