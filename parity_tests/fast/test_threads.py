"""A small model is compared in one thread of torch, a large one in as many as before, and the number comes back."""

import numpy as np
import pytest
import torch

from jaxformer.parity.trace import torch_hooks
from jaxformer.parity.trace.torch_hooks import one_if_small

MODEL, INPUTS = torch.nn.Linear(3, 5), (np.zeros((2, 3), np.float32),)


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_small_model_has_one():
    with one_if_small(MODEL, INPUTS):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_large_one_has_all(monkeypatch):
    monkeypatch.setattr(torch_hooks, "SMALL", 20 * 6)  # parameters, with biases, times numbers
    with one_if_small(MODEL, INPUTS):
        assert torch.get_num_threads() == 2


def test_the_number_comes_back_from_an_error():
    with pytest.raises(KeyError), one_if_small(MODEL, INPUTS):
        raise KeyError
    assert torch.get_num_threads() == 2
