"""Causes in what is made of sequences: pooling, features without a softmax, angles of times, layers that one loop runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import jaxformer
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.foreign

B, T, D, V, END, LAYERS = 4, 8, 6, 23, 5, 3
IDS = np.random.default_rng(3).integers(6, V, (B, T))
IDS[[0, 1, 2, 3, 1], [7, 2, 4, 5, 6]] = END  # one row has two ends
TIMES = np.array([0.0, 3.0, 40.0, 700.0], np.float32)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value, self.step = torch.nn.Linear(D, D), torch.nn.Linear(D, D, bias=False), torch.nn.Linear(D, D)
        self.ease = torch.nn.Parameter(torch.zeros(D))

    def forward(self, x):
        before = functional.pad(x, (0, 0, 1, -1))
        mixed = x + (before - x) * self.ease
        keys = functional.elu(self.key(mixed)) + 1
        found = torch.cumsum(keys * self.value(mixed), 1) / torch.cumsum(keys, 1)
        return x + found * functional.softplus(self.step(x))


class Speaker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layers = torch.nn.Embedding(V, D), torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.when, self.mean, self.end = torch.nn.Linear(4, D), torch.nn.Linear(D, 3), torch.nn.Linear(D, 3)

    def forward(self, ids, times):
        angles = times[:, None] * torch.tensor([1.0, 0.1], dtype=times.dtype)
        x = self.table(ids) + self.when(torch.cat([angles.sin(), angles.cos()], -1))[:, None]
        for layer in self.layers:
            x = layer(x)
        at = (ids == END).int().argmax(-1)
        return self.mean(x[:, 1:].mean(1)) + self.end(x[torch.arange(len(x)), at])


def linear(w, x):
    return x @ w["weight"].T + w.get("bias", 0.0)


def layer(bug, x, w):
    before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    ease = 1 - w["ease"] if bug == "ease" else w["ease"]
    if bug == "future":
        before = jnp.pad(x, ((0, 0), (0, 1), (0, 0)))[:, 1:]
    mixed = x + (before - x) * ease
    keys = jnp.exp(linear(w["key"], mixed)) if bug == "features" else jax.nn.elu(linear(w["key"], mixed)) + 1
    found = jnp.cumsum(keys * linear(w["value"], mixed), 1) / jnp.cumsum(keys, 1)
    bias = w["step"]["bias"]
    step = jax.nn.softplus(linear(w["step"], x) - bias) + bias if bug == "bias" else jax.nn.softplus(linear(w["step"], x))
    return x + found * jnp.minimum(step, 0.6 if bug == "limit" else 1e9), None


def spoken(w, ids, times, bug):
    angles = times[:, None] * jnp.array([1.0, 0.1]) / (1000 if bug == "unit" else 1)
    when = jaxformer.tap("when", linear(w["when"], jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)))
    x, _ = jax.lax.scan(lambda x, one: layer(bug, x, one), w["table"]["weight"][ids] + when[:, None], w["layers"])
    at = jnp.argmax(ids == END, -1)
    if bug == "last end":
        at = T - 1 - jnp.argmax((ids == END)[:, ::-1], -1)
    return linear(w["mean"], (x if bug == "all" else x[:, 1:]).mean(1)) + linear(w["end"], x[jnp.arange(B), at])


BUGS = {
    "unit": "jax multiplies the result by 0.001",
    "ease": "torch uses layers.*.ease as it is; jax uses 1 minus it",
    "future": "jax pads at the other end",
    "features": "computes `functional.elu(self.key(mixed)) + 1` (test_sequences.py:32); jax has exp there",
    "bias": "jax adds the bias after `functional.softplus(self.step(x))`",
    "limit": "`functional.softplus(self.step(x))` (test_sequences.py:34); jax has 0.6 at most",
    "last end": "jax chooses the last of several that are equal",
    "all": "jax has [:, 0:] for [:, 1:] there",
}


@pytest.fixture(scope="module")
def theirs():
    return excite(Speaker().eval(), seed=2)


def held(module):
    """Arrays in dicts as the modules are, those of layers stacked."""
    if isinstance(module, torch.nn.ModuleList):
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *map(held, module))
    own = {key: jnp.asarray(array.detach().numpy()) for key, array in module.named_parameters(recurse=False)}
    return own | {key: held(child) for key, child in module.named_children()}


@pytest.mark.parametrize("name", usually(BUGS, "ease", "last end"))
def test_causes_in_a_loop_over_stacked_layers(theirs, name):
    """No tap is in the loop: what is otherwise is so in every layer, and torch's are all altered at once."""
    report = compare(
        theirs, held(theirs), (IDS, TIMES), call_jax=lambda w, *x: spoken(w, *x, name), checks=("local",), tier="A"
    )
    assert BUGS[name] in report.diverging[0].cause, str(report)
