"""Causes in what an operation reads, in a mixture of experts of plain functions whose table is not tapped."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import jaxformer
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.foreign

IDS, D, INNER, EXPERTS, CAP = 17, 8, 6, 5, 3
X = np.random.default_rng(0).integers(0, IDS, (3, 7))


class TorchExperts(torch.nn.Module):
    """Chosen by scores with a bias, weighed by scores without."""

    def __init__(self):
        super().__init__()
        self.route, self.wide = torch.nn.Linear(D, EXPERTS, bias=False), torch.nn.Linear(D, INNER)
        self.up = torch.nn.ParameterList(torch.randn(D, INNER) for _ in range(EXPERTS))
        self.down, self.shift = torch.nn.Parameter(torch.randn(INNER, D)), torch.nn.Parameter(torch.zeros(EXPERTS))

    def forward(self, x):
        scores = self.route(x).sigmoid()
        _, chosen = (scores + self.shift).topk(2, -1)
        weights = scores.gather(-1, chosen)
        weights = weights / weights.sum(-1, keepdim=True) * 2.5
        found = torch.zeros(*x.shape[:-1], INNER, dtype=x.dtype)
        for number, up in enumerate(self.up):
            found = found + (x @ up).tanh() * (weights * (chosen == number)).sum(-1, keepdim=True)
        both = found + self.wide(x)
        return (CAP * torch.tanh(both / CAP)).relu() @ self.down


class TorchRouted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.experts = torch.nn.Embedding(IDS, D), TorchExperts()

    def forward(self, ids):
        x = self.table(ids)
        return x + self.experts(x)


def routed(weights, ids, bug):
    table = weights["table.weight"][ids]
    x = table * (bug != "no table")
    w = {name.removeprefix("experts."): array for name, array in weights.items()}
    scores = jax.nn.sigmoid(x @ w["route.weight"].T)
    shifted = scores + w["shift"]
    chosen = jax.lax.top_k(scores if bug == "no shift" else shifted, 2)[1]
    weight = jnp.take_along_axis(shifted if bug == "weighed by what chooses" else scores, chosen, -1)
    total = (scores if bug == "divided by all" else weight).sum(-1, keepdims=True)
    weight = weight / (total + (0.01 if bug == "with an epsilon" else 0)) * 2.5
    each = (jax.nn.one_hot(chosen, EXPERTS) * weight[..., None]).sum(-2)
    found = sum(jnp.tanh(x @ w[f"up.{i}"]) * each[..., i : i + 1] for i in range(EXPERTS))
    wide = x @ w["wide.weight"].T + w["wide.bias"]
    cap = 2.0 if bug == "another cap" else CAP
    both = cap * jnp.tanh((found + (2.5 if bug == "scaled twice" else 1) * wide) / cap)
    return table + jaxformer.tap("experts", jax.nn.relu(both) @ w["down"])


BUGS = {
    "no table": "torch uses table.weight; jax leaves it out",
    "no shift": "torch uses experts.shift; jax leaves it out",
    "weighed by what chooses": "jax reads `scores + self.shift` (test_altered_operands.py:",
    "divided by all": "jax reads `self.route(x).sigmoid()` (test_altered_operands.py:",
    "with an epsilon": "jax adds 0.01 to its second operand",
    "scaled twice": "torch computes `self.wide(x)` (test_altered_operands.py:37); jax multiplies the result by 2.5",
    "another cap": "jax has 2 for 3 there, each time",
}


@pytest.fixture(scope="module")
def theirs():
    return excite(TorchRouted().eval(), seed=1)


@pytest.mark.parametrize("name", usually(BUGS, "no table", "weighed by what chooses", "another cap"))
def test_causes_in_what_an_operation_reads(theirs, name):
    """Torch's table has no tap: one thing that is tried writes to it, and it is as it was for the next."""
    weights = {key: jnp.asarray(array) for key, array in theirs.state_dict().items()}
    report = compare(theirs, weights, (X,), call_jax=lambda w, ids: routed(w, ids, name), checks=("local",), tier="A")
    (module,) = report.diverging
    assert module.jax == "experts"
    assert BUGS[name] in module.cause, str(report)
