"""What layers add to a stream: one that adds nothing is told as that, not as a loop that reads what it read a step before."""

import jax
import jax.numpy as jnp
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise

pytestmark = [pytest.mark.foreign, pytest.mark.slow]

D, F, LAYERS = 6, 8, 3


def added(stream, more):
    return stream + more


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.up, self.down = torch.nn.Linear(D, D), torch.nn.Linear(D, F), torch.nn.Linear(F, D)

    def forward(self, x, given):
        x = added(x, self.down(torch.tanh(self.up(x))))
        return x + self.mix(given)


class Stream(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.norm = torch.nn.ModuleList(Layer() for _ in range(LAYERS)), torch.nn.LayerNorm(D)

    def forward(self, x):
        given = x
        for layer in self.layers:
            x = layer(x, given)
        return self.norm(x)


def streamed(w, x):
    """The last layer of the scan is masked."""

    given = x

    def step(x, one):
        layer, number = one
        up = tap("layers.up", x @ layer["up.weight"].T + layer["up.bias"])
        down = tap("layers.down", jnp.tanh(up) @ layer["down.weight"].T + layer["down.bias"])
        x = x + jnp.where(number < LAYERS - 1, down, 0.0)
        return x + tap("layers.mix", given @ layer["mix.weight"].T + layer["mix.bias"]), None

    x, _ = jax.lax.scan(step, x, (w["layers"], jnp.arange(LAYERS)))
    x = x - x.mean(-1, keepdims=True)
    return tap("norm", x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w["norm.weight"] + w["norm.bias"])


def test_a_layer_that_adds_nothing():
    theirs = excite(Stream().eval(), seed=1)
    held = {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in theirs.named_parameters()}
    names = ("mix.weight", "mix.bias", "up.weight", "up.bias", "down.weight", "down.bias")
    stacked = {each: jnp.stack([held[f"layers.{i}.{each}"] for i in range(LAYERS)]) for each in names}
    w = {"layers": stacked, "norm.weight": held["norm.weight"], "norm.bias": held["norm.bias"]}
    report = compare(theirs, w, (noise(2, 5, D),), call_jax=streamed, checks=("forward", "local"), tier="A")
    (norm,) = report.diverging
    assert "`stream + more`" in norm.cause, str(report)
    assert "time 3 of 3; jax leaves out the second operand (residual" in norm.cause, norm.cause
