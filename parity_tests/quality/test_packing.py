"""Several arrays that are packed in one: slices of a joint projection in another order, or packed in groups."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.diagnose.by_arrays.order import explain_ids, explain_read_ids
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

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
            "`y[..., :Q]` (test_packing.py:28) and the parts beside it as whole blocks; jax packs them in the order 0, 2, 1",
        ),
        (lambda y: in_order(y, (1, 2, 0)), HALVES, "jax packs them rolled by -1"),
        (
            in_groups,
            HALVES,
            "`y[..., :Q]` (test_packing.py:28) and the parts beside it as whole blocks; jax packs them head by head: 2 groups",
        ),
        (TORCHS, in_turns, "`self.gated(y).chunk(2, -1)` (test_packing.py:30); jax packs one entry of each in turns"),
    ],
)
def test_another_packing(cut, halve, cause):
    theirs = excite(Layers().eval(), seed=1)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    report = compare(theirs, params, (X,), call_jax=ported(cut, halve), checks=("local", "forward"), tier="A")
    assert (report.exit_code == 0) == (not cause), str(report)
    assert not cause or cause in report.diverging[0].cause, str(report)


class Modulated(torch.nn.Module):
    """By six parts of one row, which a label chooses; and blocks of two by two that become a picture."""

    def __init__(self):
        super().__init__()
        self.label, self.six = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 6 * 12)

    def forward(self, x, label):
        a, b, c, d, e, f = self.six(self.label(label)).chunk(6, -1)
        x = ((x * a + b).tanh() * c + d).tanh() * e + f
        return torch.einsum("npqc->ncpq", x.reshape(len(x), 2, 2, 3))


def modulated(bug):
    def call(p, x, label):
        label = jnp.minimum(label + 1, 4) if bug == "clipped" else label
        row = p["label.weight"][label] @ p["six.weight"].T + p["six.bias"]
        a, b, c, d, e, f = jnp.split(row, 6, -1)
        a, d = (d, a) if bug == "parts" else (a, d)
        x = jnp.tanh(jnp.tanh(x * a + b) * c + d) * e + f
        if bug == "blocks":
            return x.reshape(-1, 3, 2, 2)
        return x.reshape(-1, 2, 2, 3).transpose(0, 3, 1, 2)

    return call


MODULATED = {
    "": "",
    "parts": "jax exchanges its parts 0 and 3",
    "blocks": "jax reshapes where torch transposes, to the axes 0, 2, 3, 1",
    "clipped": "jax looks up rows moved by +1, clipped to those that there are",
}


@pytest.mark.parametrize("bug", MODULATED)
def test_parts_of_many_and_blocks(bug):
    theirs = excite(Modulated().eval(), seed=1)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    how = {
        "call_jax": modulated(bug),
        "call_torch": lambda m, x, i: m(x, i.long()),
        "checks": ("forward", "local"),
        "tier": "A",
    }
    report = compare(theirs, params, (noise(4, 12, seed=2), np.array([0, 4, 2, 1])), **how)
    assert (report.exit_code == 0) == (not bug), str(report)
    assert MODULATED[bug] in report.verdict, str(report)


def test_ids_that_are_clipped_at_a_border():
    theirs = np.array([0, 3, 1, 2])

    def said(ours):
        found = explain_ids(SimpleNamespace(jax=np.array(ours), torch=theirs))
        return found.words() if found else ""

    assert said([1, 3, 2, 3]) == "jax looks up ids 1 higher than torch's, 3 at most: an offset of 1 is too many"
    assert said([0, 2, 0, 1]) == "jax looks up ids 1 lower than torch's, 0 at least: an offset of 1 is missing"
    assert said([3, 0, 2, 1]) == ""


def test_ids_of_another_input():
    given = {"ids": np.array([0, 3, 1, 2]), "input 2 of the call": np.array([1, 1, 0, 0])}

    def found(ours):
        evidence = SimpleNamespace(ids=given)
        return explain_read_ids(SimpleNamespace(jax=np.array(ours), torch=given["ids"], evidence=evidence))

    assert found([1, 1, 0, 0]).words() == "jax takes input 2 of the call as it is for these ids"
    assert found([1, 1, 0, 1]) is None


class Attention(torch.nn.Module):
    """Three projections, where a port makes one of them; queries have a part that is not turned."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(D, size) for size in (Q, K, K))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        k, v = (each.unflatten(-1, (2, 2)).repeat_interleave(2, 2).flatten(2) for each in (k, v))
        q = torch.cat([q[..., :K].sin(), q[..., K:]], -1)
        return x + (q @ k.mT).softmax(-1) @ v[..., :D]


def attending(bug):
    def call(p, x):
        sizes = np.cumsum((Q, K))
        weight, bias = (jnp.concatenate([p[f"{name}.{kind}"] for name in "qkv"]) for kind in ("weight", "bias"))
        y = x @ weight.T + bias
        q, k, v = in_groups(y) if bug == "packed" else jnp.split(y, sizes, -1)
        k, v = (jnp.repeat(each.reshape(*each.shape[:2], 2, 2), 2, 2).reshape(*each.shape[:2], Q) for each in (k, v))
        q = jnp.concatenate([jnp.sin(q[..., :K]), q[..., K:] * (bug != "dropped")], -1)
        scores = jnp.exp(q @ k.mT)
        return x + scores / scores.sum(-1, keepdims=True) @ v[..., :D]

    return call


@pytest.mark.parametrize(
    ("bug", "cause"),
    [
        ("", ""),
        ("packed", "and the parts beside it as whole blocks; jax packs them head by head: 2 groups"),
        ("dropped", "jax has 0 for part 2 of 2"),
    ],
)
def test_one_product_for_three(bug, cause):
    theirs = excite(Attention().eval(), seed=1)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    report = compare(theirs, params, (3 * X,), call_jax=attending(bug), checks=("local", "forward"), tier="A")
    assert cause in report.verdict if cause else report.exit_code == 0, report
