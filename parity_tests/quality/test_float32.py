"""Which differences may be a constant that one side rounds to float32."""

import numpy as np

from jaxformer.parity.diagnose.by_arrays.norms import is_rounded_constant
from parity_tests.support.helpers import noise

D, B, T = 8, 3, 5


def normed(x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + epsilon) ** 0.5


def test_float32_is_no_hint_where_an_epsilon_is():
    x = noise(B, T, D).astype(np.float64) * np.linspace(4, 9, T)[:, None]
    gain, bias = noise(D, seed=1).astype(np.float64), noise(D, seed=2).astype(np.float64)
    theirs, ours = (normed(x, epsilon) for epsilon in (3e-6, 2.5e-6))
    off = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert 1e-10 < off < 6e-8
    assert not is_rounded_constant(ours, theirs)
    assert not is_rounded_constant(ours * gain + bias, theirs * gain + bias, bias)


def test_float32_is_a_hint_where_it_may_be_why():
    x, table = noise(B, T, D).astype(np.float64), np.sin(np.arange(T * D).reshape(T, D))
    assert is_rounded_constant(x * np.float64(np.float32(0.1)), x * 0.1)
    assert is_rounded_constant(x + table.astype(np.float32), x + table)
    assert not is_rounded_constant(x, x)
    assert not is_rounded_constant(x * (1 + 1e-6), x)
