"""Causes in how convolutions pad: another share on each side, causal, and which part of a transposed one is kept."""

import jax.numpy as jnp
import pytest
import torch
from jax import lax

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

B, LENGTH, IN, MID, OUT = 2, 11, 3, 5, 4
X = noise(B, IN, LENGTH, seed=1)


class Theirs(torch.nn.Module):
    """Down and up again."""

    def __init__(self):
        super().__init__()
        self.wide, self.past = torch.nn.Conv1d(IN, MID, 7, padding=3), torch.nn.Conv1d(MID, MID, 7)
        self.up = torch.nn.ConvTranspose1d(MID, OUT, 4, stride=2, padding=1)

    def forward(self, x):
        x = torch.tanh(self.wide(x))
        x = torch.tanh(self.past(torch.nn.functional.pad(x, (6, 0))))
        return self.up(x)


THEIRS = excite(Theirs().eval(), seed=2)
PARAMS = {name: tensor.detach().numpy() for name, tensor in THEIRS.named_parameters()}


def ours(params, x, *, wide=(3, 3), past=(6, 0), up=(2, 2)):
    """The same with other pads; `up` are those of the transposed convolution."""
    how = {"dimension_numbers": ("NCH", "OIH", "NCH")}

    def conv(name, x, pads):
        return lax.conv_general_dilated(x, params[f"{name}.weight"], (1,), (pads,), **how) + params[f"{name}.bias"][:, None]

    x = jnp.tanh(conv("wide", x, wide))
    x = jnp.tanh(conv("past", x, past))
    kernel = params["up.weight"].transpose(1, 0, 2)[:, :, ::-1]
    return lax.conv_general_dilated(x, kernel, (1,), (up,), lhs_dilation=(2,), **how) + params["up.bias"][:, None]


CAUSES = {
    "more before": ({"wide": (4, 2)}, "pads 4 before and 2 after"),
    "causal": ({"wide": (6, 0)}, "pads in front alone"),
    "centered": ({"past": (3, 3)}, "pads 3 before and 3 after"),
    "another part": ({"up": (3, 1)}, "begins its windows 1 earlier in each direction"),
}


@pytest.mark.parametrize("case", ["", *CAUSES])
def test_pads(case):
    bug, cause = CAUSES.get(case, ({}, ""))
    report = compare(
        THEIRS, PARAMS, (X,), call_jax=lambda params, x: ours(params, x, **bug), checks=("forward", "local"), tier="A"
    )
    assert report.exit_code == bool(case), str(report)
    assert cause in report.verdict, str(report)


class Pooled(torch.nn.Module):
    """A mean and a maximum in windows."""

    def __init__(self):
        super().__init__()
        self.mean, self.largest = torch.nn.AvgPool2d(3, 2, 1, count_include_pad=False), torch.nn.MaxPool2d(3, 2, 1)

    def forward(self, x):
        return self.mean(x) * self.largest(x)


def pooled(_, x, *, mean=(3, 3), largest=(3, 3)):
    def windows(x, start, combine, sizes):
        return lax.reduce_window(x, start, combine, (1, 1, *sizes), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 1)))

    count = windows(jnp.ones_like(x), 0.0, lax.add, mean)
    return windows(x, 0.0, lax.add, mean) / count * windows(x, -jnp.inf, lax.max, largest)


@pytest.mark.parametrize(
    ("bug", "cause"),
    [
        ({}, "EQUAL"),
        ({"mean": (4, 3)}, "`self.mean(x)` (test_pads.py:75); jax has kernel_size (4, 3) for 3"),
        ({"largest": (3, 4)}, "`self.largest(x)` (test_pads.py:75); jax has kernel_size (3, 4) for 3"),
    ],
)
def test_windows_of_poolings(bug, cause):
    how = {"call_jax": lambda p, x: pooled(p, x, **bug), "checks": ("forward", "local"), "tier": "A"}
    assert cause in compare(Pooled(), {}, (noise(B, IN, 8, 10, seed=3),), **how).verdict
