"""Causes in how pictures and signals are cut, padded, rolled and put together, in a plain function whose taps are few."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import jaxformer
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

PIXELS = noise(3, 2, 12, 18, seed=5)
WIDE, SIZE = 6, 16


class Sight(torch.nn.Module):
    """Patches, a padded and a dilated convolution, blocks of pixels, windows of a line of numbers."""

    def __init__(self):
        super().__init__()
        self.cut, self.slide = torch.nn.Conv2d(2, WIDE, (2, 3), (2, 3)), torch.nn.Conv2d(WIDE, 8, 3)
        self.far = torch.nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.fold, self.wave = torch.nn.Conv2d(2, 5, 1), torch.nn.Linear(9, 5)
        self.register_buffer("shape", torch.hann_window(SIZE), persistent=False)

    def forward(self, x):
        y = functional.pad(self.cut(x), (0, 2, 2, 0))
        y = self.far(self.slide(y))
        y = torch.roll(y, (1, -2), (2, 3))
        y = self.fold(functional.pixel_shuffle(y, 2))
        line = torch.stft(x.mean((1, 2)).repeat(1, 3), SIZE, 4, window=self.shape, pad_mode="reflect", return_complex=True)
        return y.mean((2, 3)) + self.wave(line.abs().transpose(1, 2)).amax(1)


def conv(w, x, **how):
    numbers = ("NCHW", "OIHW", "NCHW")
    return jax.lax.conv_general_dilated(x, w["k"], dimension_numbers=numbers, **how) + w["b"][:, None, None]


def patches(w, x, bug):
    rows, (height, width) = len(x), (x.shape[2] // 2, x.shape[3] // 3)
    order = {"patches": (0, 2, 4, 3, 5, 1), "rows and columns": (0, 2, 4, 1, 5, 3)}.get(bug, (0, 2, 4, 1, 3, 5))
    parts = x.reshape(rows, 2, height, 2, width, 3).transpose(order).reshape(rows, height, width, -1)
    return (parts @ w["k"].reshape(WIDE, -1).T + w["b"]).transpose(0, 3, 1, 2)


def signal(x, bug):
    line = jnp.tile(x.mean((1, 2)), (1, 3))
    line = jnp.pad(line, ((0, 0), (SIZE // 2, SIZE // 2)), mode="constant" if bug == "zeros" else "reflect")
    steps = 1 + (line.shape[1] - SIZE) // 4
    parts = line[:, 4 * jnp.arange(steps)[:, None] + jnp.arange(SIZE)]
    window = np.hanning(SIZE) if bug == "symmetric" else np.hanning(SIZE + 1)[:SIZE]
    return jnp.abs(jnp.fft.rfft(parts * (window**2 if bug == "squared" else window), axis=-1))


def seen(w, x, bug):
    y = patches(w["cut"], x, bug)
    y = jnp.pad(y, ((0, 0), (0, 0), (0, 2), (2, 0)) if bug == "pads" else ((0, 0), (0, 0), (2, 0), (0, 2)))
    y = jaxformer.tap("slide", conv(w["slide"], y, window_strides=(1, 1), padding="VALID"))
    far = {"dilation": (1, 1), "dilation of rows": (3, 2)}.get(bug, (2, 2))
    y = conv(w["far"], y, window_strides=(1, 1), padding=[(n, n) for n in far], rhs_dilation=far)
    y = jnp.roll(jaxformer.tap("far", y), (-1, 2) if bug == "roll" else (1, -2), (2, 3))
    rows, _, height, width = y.shape
    if bug == "pixels":
        y = y.reshape(rows, 2, 2, 2, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        y = y.reshape(rows, 2, 2, 2, height, width).transpose(0, 1, 4, 2, 5, 3)
    y = y.reshape(rows, 2, 2 * height, 2 * width)
    y = jaxformer.tap("fold", conv(w["fold"], y, window_strides=(1, 1), padding="VALID"))
    line = jaxformer.tap("wave", signal(x, bug) @ w["wave"]["k"].T + w["wave"]["b"])
    return y.mean(2).max(2) + line.max(1) if bug == "over one axis" else y.mean((2, 3)) + line.max(1)


BUGS = {
    "patches": "torch flattens the patches of cut as (channels, rows, columns); jax as (rows, columns, channels)",
    "rows and columns": "torch flattens the patches of cut as (channels, rows, columns); jax as (channels, columns, rows)",
    "pads": "jax pads at the other end",
    "dilation": "jax has dilation 1, and pads for it",
    "dilation of rows": "jax has dilation 3 along axis 2, and pads for it",
    "roll": "jax rolls the other way round",
    "pixels": "jax reads the channels as (height, width, channels)",
    "zeros": "jax pads by zeros",
    "symmetric": "jax has a hann window, symmetric",
    "squared": "torch uses shape as it is; jax squares it",
    "over one axis": "jax takes the mean over axis 2 and the maximum over axis 3",
}


@pytest.fixture(scope="module")
def theirs():
    return excite(Sight().eval(), seed=2)


@pytest.mark.parametrize("name", usually(BUGS, "patches", "pads", "dilation", "pixels", "squared"))
def test_causes_in_how_pictures_are_put_together(theirs, name):
    weights = {
        key: {"k": jnp.asarray(each.weight.detach().numpy()), "b": jnp.asarray(each.bias.detach().numpy())}
        for key, each in theirs.named_children()
    }
    report = compare(theirs, weights, (PIXELS,), call_jax=lambda w, x: seen(w, x, name), checks=("local",), tier="A")
    assert BUGS[name] in report.diverging[0].cause, str(report)
