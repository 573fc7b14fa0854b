"""Modules whose arrays have another shape in jax, where the shapes behind them are torch's again."""

import jax
import jax.numpy as jnp
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign
X = noise(2, 3, 9, 7, seed=0)


class Torch(torch.nn.Module):
    """The bottleneck of ResNet 1.5: the second convolution has the stride."""

    def __init__(self):
        super().__init__()
        self.narrow = torch.nn.Conv2d(3, 4, 1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.spatial = torch.nn.Conv2d(4, 5, 3, 2, 1)
        self.head = torch.nn.Linear(5, 6)

    def forward(self, x):
        return self.head(torch.relu(self.spatial(torch.relu(self.norm(self.narrow(x))))).mean((2, 3)))


def port(strides, above, p, x):
    def convolved(name, x, stride, pad, above=0):
        y = jax.lax.conv_general_dilated(x, p[f"{name}.weight"], (stride, stride), [(pad + above, pad), (pad, pad)])
        return tap(name, y + p[f"{name}.bias"][:, None, None])

    def normalised(x):
        mean, variance, gain, bias = (
            p[f"norm.{key}"][:, None, None] for key in ("running_mean", "running_var", "weight", "bias")
        )
        return tap("norm", (x - mean) / jnp.sqrt(variance + 1e-5) * gain + bias)

    y = convolved("spatial", jax.nn.relu(normalised(convolved("narrow", x, strides[0], 0))), strides[1], 1, above)
    return tap("head", jax.nn.relu(y).mean((2, 3)) @ p["head.weight"].T + p["head.bias"])


@pytest.fixture(scope="module")
def compared():
    theirs = excite(Torch().eval(), seed=1)
    weights = {name: jnp.asarray(array) for name, array in theirs.state_dict().items() if "tracked" not in name}
    return lambda *how: compare(
        theirs, weights, (X,), call_jax=lambda p, x: port(*how, p, x), tier="A", checks=("forward", "local")
    )


def test_a_convolution_of_another_shape_is_told(compared):
    found = compared((2, 1), 0)
    says = "gives [2, 4, 5, 4] in jax, [2, 4, 9, 7] in torch: torch narrow.stride (1, 1); jax narrow.stride (2, 2) (residual "
    assert found.verdict.startswith(f"DIFFERENT: narrow: {says}"), str(found)
    assert len(found.diverging) == 1, str(found)


@pytest.mark.parametrize(
    ("strides", "above", "cause"), [((1, 4), 0, "stride (4, 4)"), ((1, 2), 2, "pads 3 before and 1 after")]
)
def test_the_convolution_of_the_array_of_another_shape_is_told(compared, strides, above, cause):
    """By the next array of torch's shape, whose code begins before it."""
    found = compared(strides, above)
    assert "head: torch computes `self.spatial(" in found.verdict, str(found)
    assert cause in found.verdict


def test_the_port_is_right(compared):
    report = compared((1, 2), 0)
    assert report.status == "equal", str(report)
