"""Copies of a model that a comparison makes, and what its runs record, are freed when they are done with, not when garbage is
collected: of a large model each is gigabytes."""

import gc

import jax
import numpy as np
import pytest
import torch

import jaxformer as jf
from jaxformer.parity.trace.call_sites import Visits

pytestmark = pytest.mark.foreign
X = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

    def forward(self, x):
        return (x @ self.down(torch.nn.functional.gelu(self.up(x))).mT).softmax(-1)


def port(approximate):
    def run(p, x):
        y = jf.tap("up", x @ p["up.weight"].T + p["up.bias"])
        y = jf.tap("down", jax.nn.gelu(y, approximate=approximate) @ p["down.weight"].T + p["down.bias"])
        return jax.nn.softmax(x @ y.mT)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [True, False])
def test_no_copy_of_the_model_and_no_run_is_left(wrong):
    model = jf.excite(Net().eval(), seed=0)
    weights = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    gc.collect()
    gc.disable()
    try:
        report = jf.compare(model, weights, (X,), call_jax=port(approximate=wrong))
        left = [each for each in gc.get_objects() if type(each) in (Net, Visits) and each is not model]
    finally:
        gc.enable()
    assert report.status == ("different" if wrong else "equal")
    assert left == []
