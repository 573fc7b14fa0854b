"""Causes in which array is read: another position, another child's, another row's, another norm's; in Linen."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

B, T, D = 3, 7, 8
X = noise(B, T, D, seed=3)
VALID = np.arange(T) < np.array([[7], [4], [5]])


class Both(torch.nn.Module):
    """Two branches beside each other, a norm over positions of one row each, and three ways to make one vector of many."""

    def __init__(self):
        super().__init__()
        self.first, self.near, self.far, self.second = (torch.nn.Linear(D, D) for _ in range(4))
        self.before, self.after, self.last = (torch.nn.LayerNorm(D) for _ in range(3))
        self.groups, self.head = torch.nn.GroupNorm(2, D), torch.nn.Linear(3 * D, 5)

    def forward(self, x, valid):
        start = self.first(x)
        h = self.before(start)
        x = start + self.near(h) + self.far(h)
        x = x + self.second(self.after(x))
        x = self.groups(x.reshape(-1, D)).view(x.shape)
        mean = (x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        return self.head(torch.cat([self.last(x[:, -1]), mean, start.amax(1)], -1))


class Ours(nn.Module):
    """The same, with a bug."""

    bug: str

    @nn.compact
    def __call__(self, x, valid):
        bug, lines = self.bug, {name: nn.Dense(D, name=name) for name in ("first", "near", "far", "second")}
        norms = {name: nn.LayerNorm(epsilon=1e-5, name=name) for name in ("before", "after", "last")}
        start = lines["first"](x)
        h = norms["before"](start)
        x = start + lines["near"](h)
        x = x + lines["far"](norms["before"](x) if bug == "one after the other" else h)
        x = x + lines["second"](norms["after"](start if bug == "stream before" else x))
        groups = nn.GroupNorm(2, epsilon=1e-5, name="groups")
        x = groups(x) if bug == "rows at once" else groups(x.reshape(-1, D)).reshape(x.shape)
        count = valid.sum(1, keepdims=True)
        mean = x.mean(1) if bug == "pads too" else (x * valid[..., None]).sum(1) / count
        last = x[jnp.arange(B), valid.sum(1) - 1] if bug == "last that counts" else x[:, -1]
        largest = (x if bug == "another's largest" else start).max(1)
        return nn.Dense(5, name="head")(jnp.concatenate([norms["last"](last), mean, largest], -1))


BUGS = {
    "one after the other": "jax applies before to `start + self.near(h)` (test_arrays_read.py:",
    "stream before": "torch adds near + far; jax adds nothing of that",
    "rows at once": "jax normalises 7 rows together",
    "pads too": "torch applies the mask that it is given; jax does not apply it",
    "last that counts": "by input 2 in its place",
    "another's largest": "jax reads the largest of all positions of `self.groups(x.reshape(-1, D)).view(x.shape)`",
}


@pytest.fixture(scope="module")
def theirs():
    return excite(Both().eval(), seed=2)


@pytest.mark.parametrize("name", usually(BUGS, "one after the other", "rows at once", "last that counts"))
def test_causes_in_which_array_is_read(theirs, name):
    weights = {
        key: {
            "scale" if "Norm" in type(each).__name__ else "kernel": jnp.asarray(each.weight.detach().numpy().T),
            "bias": jnp.asarray(each.bias.detach().numpy()),
        }
        for key, each in theirs.named_children()
    }
    model = Ours(name)
    how = {"call_jax": lambda w, *x: model.apply({"params": w}, *x), "checks": ("local",), "tier": "A"}
    report = compare(theirs, weights, (X, VALID), **how)
    assert BUGS[name] in report.diverging[0].cause, str(report)


class CrossAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.o = (torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x, memory, mask):
        scores = (self.q(x) @ self.k(memory).mT).masked_fill(~mask[:, None], -torch.inf)
        return self.o(scores.softmax(-1) @ memory)


class OfItself(nnx.Module):
    """A port that takes keys from its own input, and more is wrong after them."""

    def __init__(self, weights):
        self.q, self.k, self.o = (nnx.Linear(6, 6, rngs=nnx.Rngs(0)) for _ in range(3))
        for name in "qko":
            getattr(self, name).kernel[...] = jnp.asarray(weights[f"{name}.weight"].numpy().T)
            getattr(self, name).bias[...] = jnp.asarray(weights[f"{name}.bias"].numpy())

    def __call__(self, x, memory, mask):
        return self.o(jax.nn.softmax(self.q(x) @ self.k(x).swapaxes(1, 2), -1) @ memory**2)


def test_another_array_is_told_beside_what_has_no_cause():
    theirs = excite(CrossAttention().eval(), seed=0)
    given = noise(2, 5, 6, seed=1), noise(2, 5, 6, seed=2), np.arange(5) < np.array([[5], [3]])
    report = compare(theirs, OfItself(theirs.state_dict()), given, tier="A", checks=("forward", "local"))
    assert "input of k: torch adds input 1; jax adds input in the place of that" in report.verdict, str(report)
