"""Several arrays that are packed in one: slices of a joint projection in another order, or packed in groups."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe.parameters import excite
from parity_tests.helpers import noise

pytestmark = pytest.mark.foreign

D, Q, K = 5, 8, 4
X = noise(2, 3, D, seed=1)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.joint, self.gated, self.out = torch.nn.Linear(D, Q + 2 * K), torch.nn.Linear(Q, 12), torch.nn.Linear(6, D)

    def forward(self, x):
        y = self.joint(x)
        q, k, v = y[..., :Q], y[..., Q : Q + K], y[..., Q + K :]
        y = q * torch.cat([k, v.tanh()], -1).sigmoid()
        gate, up = self.gated(y).chunk(2, -1)
        return x + self.out(gate.sigmoid() * up)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(), Layer()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def in_order(y, order):
    sizes = [(Q, K, K)[i] for i in order]
    parts = jnp.split(y, np.cumsum(sizes)[:-1], -1)
    return [parts[order.index(i)] for i in range(3)]


def in_groups(y):
    y = y.reshape(*y.shape[:-1], 2, -1)
    return [part.reshape(*part.shape[:-2], -1) for part in jnp.split(y, (Q // 2, Q // 2 + K // 2), -1)]


def in_turns(y):
    return y[..., ::2], y[..., 1::2]


def ported(cut, halve):
    def call(p, x):
        for i in range(2):
            layer = {name.removeprefix(f"layers.{i}."): array for name, array in p.items()}
            q, k, v = cut(linear(layer, "joint", x))
            gate, up = halve(linear(layer, "gated", q * sigmoid(jnp.concatenate([k, jnp.tanh(v)], -1))))
            x = x + linear(layer, "out", sigmoid(gate) * up)
        return x

    return call


def linear(layer, name, x):
    return x @ layer[f"{name}.weight"].T + layer[f"{name}.bias"]


def sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


TORCHS = lambda y: in_order(y, (0, 1, 2))  # noqa: E731
HALVES = lambda y: jnp.split(y, 2, -1)  # noqa: E731


@pytest.mark.parametrize(
    ("cut", "halve", "cause"),
    [
        (TORCHS, HALVES, ""),
        (
            lambda y: in_order(y, (0, 2, 1)),
            HALVES,
            "`y[..., :Q]` (test_packing.py:25) and the like; jax has its parts packed in the order 0, 2, 1",
        ),
        (lambda y: in_order(y, (1, 2, 0)), HALVES, "jax has its parts packed in the order 1, 2, 0"),
        (in_groups, HALVES, "`y[..., :Q]` (test_packing.py:25) and the like; jax has them packed in 2 groups"),
        (TORCHS, in_turns, "`self.gated(y).chunk(2, -1)` (test_packing.py:27); jax has one entry of each in turns"),
    ],
)
def test_another_packing(cut, halve, cause):
    theirs = excite(Layers().eval(), seed=1)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    report = compare(theirs, params, (X,), call_jax=ported(cut, halve), checks=("local", "forward"), tier="A")
    assert (report.exit_code == 0) == (not cause), str(report)
    assert not cause or cause in report.diverging[0].cause, str(report)
