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
from jaxformer.parity.trace.jax_hooks import tap
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
    "last that counts": "by input 1 in its place",
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


class Attends(torch.nn.Module):
    """Cross-attention of one module of torch's, over keys that are normed, with padding."""

    def __init__(self):
        super().__init__()
        self.norm, self.out = torch.nn.LayerNorm(D), torch.nn.Linear(D, D)
        self.attend = torch.nn.MultiheadAttention(D, 2, batch_first=True)

    def forward(self, x, memory, pad):
        keys = self.norm(memory)
        return self.out(x + self.attend(x, keys, keys, key_padding_mask=pad, need_weights=False)[0])


def normed(weights, x):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5) * weights["norm.weight"] + weights["norm.bias"]


def line(weights, name, x):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def attended(weights, x, memory, pad, bug):
    def heads(name, x):
        i = "qkv".index(name) * D
        y = x @ weights["attend.in_proj_weight"][i : i + D].T + weights["attend.in_proj_bias"][i : i + D]
        return y.reshape(*y.shape[:2], 2, D // 2).swapaxes(1, 2)

    keys = normed(weights, memory)
    scores = heads("q", x) @ heads("k", keys).mT / (D // 2) ** 0.5
    scores = jnp.where(pad[:, None, None], -1e30, scores)
    y = jax.nn.softmax(scores, -2 if bug == "queries" else -1) @ heads("v", memory if bug == "values" else keys)
    return line(weights, "out", x + line(weights, "attend.out_proj", y.swapaxes(1, 2).reshape(x.shape)))


OF_ATTENTION = {
    "values": "torch passes attend its own arguments; jax passes its input 1 for its third argument",
    "queries": "jax takes the softmax over queries, not keys",
}


@pytest.mark.parametrize("bug", OF_ATTENTION)
def test_causes_in_what_attention_of_torchs_reads(bug):
    torch_model = excite(Attends().eval(), seed=1)
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in torch_model.named_parameters()}
    given = noise(3, 4, D, seed=1), noise(3, 6, D, seed=2), np.arange(6) >= np.array([[6], [3], [4]])
    how = {"call_jax": lambda w, *x: attended(w, *x, bug), "checks": ("local",), "tier": "A"}
    assert OF_ATTENTION[bug] in compare(torch_model, weights, given, **how).verdict


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(D)
        self.a, self.b, self.out = (torch.nn.Linear(D, n) for n in (D, D, 3))

    def forward(self, x):
        y = self.norm(x)
        return self.out(x + self.a(y) * torch.sigmoid(self.b(y))).square().mean()


@pytest.mark.parametrize("tapped", [False, True])
def test_another_array_is_read_in_a_loss(tapped):
    """The gradients of what is read in its place have to be jax's, too."""
    torch_model = excite(Gated().eval(), seed=0)
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in torch_model.named_parameters()}

    def loss(weights, x):
        y = tap("norm", normed(weights, x)) if tapped else normed(weights, x)
        gated = line(weights, "a", y) * jax.nn.sigmoid(line(weights, "b", y))
        return jnp.square(line(weights, "out", y + gated)).mean()

    report = compare(torch_model, weights, (noise(5, D, seed=4),), call_jax=loss)
    what = "what norm gives" if tapped else "`self.norm(x)` (test_arrays_read.py:"
    assert f"jax reads {what}" in report.verdict, str(report)
    assert "for its first operand" in report.verdict


class Typed(torch.nn.Module):
    """Places and types, of which either may be looked up by the other's ids."""

    def __init__(self):
        super().__init__()
        self.place, self.kind, self.norm = torch.nn.Embedding(9, D), torch.nn.Embedding(11, D), torch.nn.LayerNorm(D)

    def forward(self, places, types):
        return self.norm(self.place(places.long()) + self.kind(types.long())).square()


@pytest.mark.parametrize("reduced", ["no", "mean"])
def test_two_inputs_are_exchanged(reduced):
    torch_model = excite(Typed().eval(), seed=0)
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in torch_model.named_parameters()}

    def squares(weights, types, places):
        x = jnp.square(normed(weights, weights["place.weight"][places] + weights["kind.weight"][types]))
        return x.mean() if reduced == "mean" else x

    ids = np.random.default_rng(0).integers(0, 9, (2, 3, 5))
    how = {"call_torch": lambda model, *ids: model(*ids).mean()} if reduced == "mean" else {}
    verdict = compare(torch_model, weights, (*ids,), call_jax=squares, **how).verdict
    assert "torch takes input 0 and input 1 as named; jax exchanges the two" in verdict, verdict


PARAMETERS = {
    "b.weight": ("a.weight", "torch uses b.weight; jax uses a.weight in its place"),
    "norm.bias": (jnp.zeros_like, "torch uses norm.bias; jax leaves it out"),
    "norm.weight": (lambda x: 1 + x, "torch uses norm.weight as it is; jax adds 1 to it"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_is_read_otherwise_in_a_loss(name):
    torch_model, (instead, cause) = excite(Gated().eval(), seed=0), PARAMETERS[name]
    weights = {name: jnp.asarray(each.detach().numpy()) for name, each in torch_model.named_parameters()}

    def loss(weights, x):
        w = weights | {name: weights[instead] if isinstance(instead, str) else instead(weights[name])}
        y = normed(w, x)
        return jnp.square(line(w, "out", x + line(w, "a", y) * jax.nn.sigmoid(line(w, "b", y)))).mean()

    assert cause in compare(torch_model, weights, (noise(5, D, seed=4),), call_jax=loss).verdict
