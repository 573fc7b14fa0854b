"""Causes in torch's GRU and LSTM against scans that are written by hand."""

import jax
import jax.numpy as jnp
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

D, H = 5, 6
X = noise(2, 7, D, seed=1)


class TorchTagger(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        how = {} if "Cell" in kind else {"batch_first": True}
        self.rnn, self.head = getattr(torch.nn, kind)(D, H, **how), torch.nn.Linear(H, 3)

    def forward(self, x):
        return self.head(stepped(self.rnn, x) if isinstance(self.rnn, torch.nn.LSTMCell) else self.rnn(x)[0])


def stepped(cell, x):
    """A loop in the model's own code."""
    h = c = x.new_zeros(len(x), H)
    found = []
    for t in range(x.shape[1]):
        h, c = cell(x[:, t], (h, c))
        found.append(h)
    return torch.stack(found, 1)


def tagged(weights, x, bug):
    end = "_l0" if "rnn.weight_ih_l0" in weights else ""
    w, u, b, c = (weights[f"rnn.{name}{end}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    is_gru = len(w) == 3 * H

    def gru(h, x):
        r, z, n = jnp.split(x @ w.T + b, 3, -1)
        hr, hz, hn = jnp.split(h @ u.T + (0 if bug == "no hidden bias" else c), 3, -1)
        if bug == "order":
            (r, z), (hr, hz) = (z, r), (hz, hr)
        r, z = jax.nn.sigmoid(r + hr), jax.nn.sigmoid(z + hz)
        z = 1 - z if bug == "sense" else z
        inner = (r * h) @ u[2 * H :].T + c[2 * H :] if bug == "reset first" else r * hn
        if bug == "bias after":
            inner += (1 - r) * c[2 * H :]
        h = (1 - z) * jnp.tanh(n + inner) + z * h
        return h, h

    def lstm(state, x):
        cell, h = state
        gates = jnp.split(x @ w.T + b + h @ u.T + c, 4, -1)
        i, f, g, o = (gates[n] for n in ((0, 2, 1, 3) if bug == "order" else range(4)))
        f = f + 1 if bug == "forget" else f
        forget = jnp.clip(0.2 * f + 0.5, 0, 1) if bug == "hard" else jax.nn.sigmoid(f)
        cell = forget * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * (cell if bug == "no tanh" else jnp.tanh(cell))
        return (cell, h), h

    start = jnp.zeros((len(x), H), x.dtype)
    start = start if is_gru else (start, start)
    _, found = jax.lax.scan(gru if is_gru else lstm, start, x.swapaxes(0, 1), reverse=bug == "backwards")
    found = found.swapaxes(0, 1)
    found = tap("rnn", found) if end else found
    return tap("head", found @ weights["head.weight"].T + weights["head.bias"])


BUGS = {
    "GRU, order": "jax has its gates in the order update, reset, new",
    "GRU, sense": "jax uses 1 - update gate for it",
    "GRU, reset first": "jax applies the reset gate to the state before weight_hh",
    "GRU, bias after": "jax adds the new gate's bias_hh after the product with the reset gate",
    "GRU, no hidden bias": "bias_hh",
    "LSTM, order": "jax has its gates in the order input, cell, forget, output",
    "LSTM, forget": "jax adds 1 to the forget gate's bias",
    "LSTM, no tanh": "jax leaves out the tanh of its output",
    "LSTM, hard": "jax has hard sigmoid 0.2 x + 0.5 in the forget gate",
    "LSTM, backwards": "jax runs backwards",
    "LSTMCell, order": "jax has its gates in the order input, cell, forget, output",
    "LSTMCell, no tanh": "jax leaves out the tanh of its output",
}


@pytest.mark.parametrize("name", usually(BUGS, "GRU, reset first", "LSTMCell, order"))
def test_causes_in_recurrences(name):
    kind, bug = name.split(", ")
    theirs = excite(TorchTagger(kind).eval(), seed=1)
    weights = {key: jnp.asarray(array) for key, array in theirs.state_dict().items()}
    report = compare(theirs, weights, (X,), call_jax=lambda w, x: tagged(w, x, bug), checks=("local",), tier="A")
    (module,) = report.diverging
    assert module.jax == ("head" if "Cell" in kind else "rnn")
    assert BUGS[name] in module.cause, str(report)


LENGTHS = (7, 5, 3)


class Packed(torch.nn.Module):
    """Both directions over sequences of several lengths; also the last state of each."""

    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.GRU(D, H, batch_first=True, bidirectional=True)

    def forward(self, x):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True)
        y, last = self.rnn(packed)
        return torch.cat([torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0].mean(1), *last], -1)


def packed(weights, x, bug):
    valid = jnp.arange(x.shape[1]) < jnp.array(LENGTHS)[:, None]

    def direction(end, reverse):
        w, u, b, c = (weights[f"rnn.{name}_l0{end}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))

        def step(h, at):
            (r, z, n), (hr, hz, hn) = (jnp.split(y, 3, -1) for y in (at[0] @ w.T + b, h @ u.T + c))
            (r, hr), (z, hz) = ((z, hz), (r, hr)) if bug == "order" else ((r, hr), (z, hz))
            r, z = jax.nn.sigmoid(r + hr), jax.nn.sigmoid(z + hz)
            new = (1 - z) * jnp.tanh(n + r * hn) + z * h
            goes_on = at[1][:, None] | (bug == "padding" and reverse)
            return jnp.where(goes_on, new, h), jnp.where(at[1][:, None], new, 0)

        last, y = jax.lax.scan(step, jnp.zeros((len(x), H), x.dtype), (x.swapaxes(0, 1), valid.T), reverse=reverse)
        return y.mean(0), last

    (y, last), (back, first) = direction("", False), direction("_reverse", bug != "forwards")
    return jnp.concatenate([y, back, last, first], -1)


PACKED = {
    "": "EQUAL",
    "order": "jax has its gates in the order update, reset, new in weights and biases",
    "forwards": "jax runs the second direction forwards too",
    "padding": "jax begins the second direction in the padding",
}


@pytest.mark.parametrize("bug", PACKED)
def test_packed_sequences(bug):
    theirs = excite(Packed().eval(), seed=0)
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    x = noise(len(LENGTHS), max(LENGTHS), D, seed=2)
    for row, length in enumerate(LENGTHS):
        x[row, length:] = 0
    how = {"call_jax": lambda weights, x: packed(weights, x, bug), "checks": ("forward", "local"), "tier": "A"}
    assert PACKED[bug] in compare(theirs, params, (x,), **how).verdict
