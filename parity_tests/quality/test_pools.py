"""Windows, strides and pads of poolings, told also where the output has other sizes."""

import pytest
import torch
from torch.nn import functional

from parity_tests.support.helpers import noise
from parity_tests.support.searches import cause_between

X = noise(2, 3, 8, 6, seed=5)


class Pooled(torch.nn.Module):
    """A pooling by windows of `sizes`, with pads at both ends of each axis, the last axis first."""

    def __init__(self, pool, sizes=3, strides=2, pads=(1, 1, 1, 1)):
        super().__init__()
        self.inner, self.pool = torch.nn.Conv2d(3, 4, 1), pool
        self.sizes, self.strides, self.pads = sizes, strides, lambda: pads

    def forward(self, x):
        x = self.inner(x)
        if self.pads() == (1, 1, 1, 1):
            x = self.pool(x, self.sizes, self.strides, 1)
        else:
            fill = -torch.inf if self.pool is functional.max_pool2d else 0.0
            x = self.pool(functional.pad(x, self.pads(), value=fill), self.sizes, self.strides)
        return (x * x).sum((2, 3))


CASES = {
    "shorter windows": ({"sizes": (2, 3)}, "jax has kernel_size (2, 3) for 3"),
    "fewer pads in front": ({"pads": (1, 1, 0, 1)}, "jax pads 0 before and 1 after along axis 2"),
    "more pads in front": ({"pads": (2, 1, 2, 1)}, "jax pads 2 before and 1 after"),
    "a stride of one axis": ({"strides": (2, 1)}, "jax has stride (2, 1) for 2"),
}


@pytest.mark.parametrize("pool", [functional.max_pool2d, functional.avg_pool2d])
@pytest.mark.parametrize("name", CASES)
def test_what_is_different_in_a_pooling_is_named(pool, name):
    how, words = CASES[name]
    assert words in cause_between(Pooled(pool), Pooled(pool, **how), X)


class Adaptive(torch.nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.inner, self.pool = torch.nn.Conv2d(3, 4, 1), pool

    def forward(self, x):
        return self.pool(self.inner(x)).flatten(1).square()


@pytest.mark.parametrize("kind", ["avg", "max"])
def test_an_adaptive_pooling_of_windows_side_by_side(kind):
    adaptive, plain = getattr(functional, f"adaptive_{kind}_pool2d"), getattr(functional, f"{kind}_pool2d")
    says = cause_between(Adaptive(lambda x: adaptive(x, (2, 3))), Adaptive(lambda x: plain(x, 2)), X[:, :, :5])
    assert "jax has windows of (2, 2) side by side, without the entries that are left" in says
