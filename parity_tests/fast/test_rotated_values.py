"""Values that are rotated as queries and keys are, in code without taps."""

import torch

from jaxformer.parity.diagnose.operators.rotary_heads import Rotation
from jaxformer.parity.diagnose.rotary_rates import plain_rates
from parity_tests.support.searches import cause_between
from parity_tests.zoo.programs import H, N, Rotary, T, X


def rotated(module, given, values):
    """Rotate values `B T (N H)` by their positions."""
    heads = values.unflatten(-1, (N, H)).transpose(1, 2)
    return Rotation(plain_rates(H, 10000.0))(heads, torch.arange(T)).transpose(1, 2).flatten(2)


def test_values_that_are_rotated():
    port = Rotary()
    port.v.register_forward_hook(rotated)
    cause = cause_between(Rotary(), port, X, tapped=False)
    assert "torch rotates queries and keys alone at `scores.softmax(-1)` (programs.py:48); jax rotates values too" in cause
