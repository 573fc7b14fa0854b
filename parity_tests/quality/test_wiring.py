"""What the parts of a layer read: branches beside or after one another, in every layer of a plain function."""

import jax.numpy as jnp
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

D = 6
X = noise(2, 3, D, seed=1)


class Layer(torch.nn.Module):
    def __init__(self, parallel):
        super().__init__()
        self.first, self.second = torch.nn.RMSNorm(D, eps=1e-5), torch.nn.RMSNorm(D, eps=1e-5)
        self.attention, self.mlp, self._parallel = torch.nn.Linear(D, D), torch.nn.Linear(D, D), parallel

    def forward(self, x):
        y = self.attention(self.first(x))
        h = x + y
        z = self.mlp(self.second(x if self._parallel else h))
        return h + z


class Layers(torch.nn.Module):
    def __init__(self, parallel):
        super().__init__()
        self.start = torch.nn.Parameter(torch.ones(D))
        self.layers = torch.nn.ModuleList([Layer(parallel), Layer(parallel)])

    def forward(self, x):
        x = torch.tanh(x * self.start)
        for layer in self.layers:
            x = layer(x)
        return x.tanh()


def ported(bug, parallel, taps):
    tapped = tap if taps else lambda name, x: x

    def call(p, x):
        x = jnp.tanh(x * p["start"])
        for i in range(2):
            x = layer(
                {name: p[f"layers.{i}.{name}"] for name in NAMES}, x, lambda name, x, i=i: tapped(f"layers.{i}.{name}", x)
            )
        return jnp.tanh(x)

    def layer(p, x, tapped):
        norm = lambda name, x: tapped(name, x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"])  # noqa: E731
        linear = lambda name, x: tapped(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])  # noqa: E731
        y = linear("attention", norm("first", x))
        h = y if bug == "no residual" else x + y
        normed = norm("second", {"parallel": x, "serial": h}.get(bug, x if parallel else h))
        z = linear("mlp", normed)
        return normed + z if bug == "normed" else h + z

    return call


NAMES = ("first.weight", "second.weight", *(f"{name}.{part}" for name in ("attention", "mlp") for part in ("weight", "bias")))
BUGS = {
    ("", False, False): "",
    ("parallel", False, False): "torch passes layers.*.second its own input; jax passes it the layer's input",
    ("serial", True, False): "torch passes layers.*.second its own input; jax passes it that plus the output of attention",
    ("normed", False, False): "jax reads the last output of",
    ("no residual", False, True): "torch computes `x + y` (test_wiring.py:26); jax leaves out the first operand",
}


@pytest.mark.parametrize("case", BUGS)
def test_what_the_parts_of_a_layer_read(case):
    theirs = excite(Layers(case[1]).eval(), seed=1)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    report = compare(theirs, params, (X,), call_jax=ported(*case), checks=("local", "forward"), tier="A")
    assert (report.exit_code == 0) == (not case[0]), str(report)
    assert not case[0] or BUGS[case] in report.diverging[0].cause, str(report)
