"""Spectra of long signals, whose window torch holds in float32 and JAX code computes."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

SIZE, HOP = 120, 50
SIGNAL = noise(2, SIZE + 3 * HOP, seed=4)


class Spectrum(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(SIZE))
        self.lin = torch.nn.Linear(SIZE // 2 + 1, 3)

    def forward(self, x):
        frames = x.unfold(-1, SIZE, HOP) * self.window
        return self.lin(torch.log(torch.fft.rfft(frames).abs() ** 2 + 1e-3))


@pytest.fixture(scope="module")
def theirs():
    return excite(Spectrum().eval(), seed=3)


def compared(theirs, window):
    def call(weights, x):
        frames = x[:, HOP * np.arange(4)[:, None] + np.arange(SIZE)] * window()
        return jnp.log(jnp.abs(jnp.fft.rfft(frames)) ** 2 + 1e-3) @ weights["w"] + weights["b"]

    weights = {"w": theirs.lin.weight.detach().numpy().T, "b": theirs.lin.bias.detach().numpy()}
    return compare(theirs, weights, (SIGNAL,), call_jax=call, checks=("forward", "local"), tier="A")


def test_a_window_that_jax_computes(theirs):
    report = compared(theirs, lambda: 0.5 - 0.5 * jnp.cos(2 * jnp.pi * jnp.arange(SIZE) / SIZE))
    assert report.exit_code == 0, str(report)
    assert "window, which JAX computes, differs by" in str(report)


def test_another_window(theirs):
    report = compared(theirs, lambda: jnp.hanning(SIZE))
    assert "torch has a Hann window, periodic in window; jax has a Hann window, symmetric" in str(report)
