"""Arrays without axes: a temperature as a parameter, and a loss as the output."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

D = 6


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = torch.nn.Parameter(torch.tensor(0.7))
        self.spare = torch.nn.Parameter(torch.tensor(0.2))

    def forward(self):
        return self.logit_scale.exp()


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.scale = torch.nn.Linear(D, D, bias=False), Scale()

    def forward(self, x):
        return (self.line(x) * self.scale()).square().mean()


@pytest.mark.parametrize(
    ("factor", "verdict", "gradients"),
    [
        (1.0, "EQUAL: ", "4 tensors, 1 null"),
        (
            1.1,
            "DIFFERENT: (call): torch computes `self.logit_scale.exp()` (test_scalars.py:22); jax multiplies its first",
            "input 0: relL2 ",
        ),
    ],
)
def test_a_scalar(factor, verdict, gradients):
    theirs = excite(Loss().eval(), seed=0)
    arrays = {name: np.asarray(parameter.detach()) for name, parameter in theirs.named_parameters()}
    ours = {"kernel": arrays["line.weight"].T, "temperature": arrays["scale.logit_scale"], "spare": arrays["scale.spare"]}

    def call(params, x):
        return jnp.square(x @ params["kernel"] * jnp.exp(factor * params["temperature"])).mean()

    report = compare(theirs, ours, (noise(3, 5, D, seed=1),), call_jax=call)
    assert report.verdict.startswith(verdict), str(report)
    assert next(stage.says for stage in report.stages if stage.name == "gradients").startswith(gradients)
    assert report.not_covered == ["scale.spare"]
