"""Causes in where modules stand, and in which rows of a table are read, in a model of plain functions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.diagnose.operators.positions import other_ids
from jaxformer.parity.diagnose.operators.rotary_tables import plain_rates, rotary
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

HIGH, WIDE, D = 2, 3, 6
X = noise(2, HIGH * WIDE, D, seed=1)


def distances(first, second):
    """Of all pairs of a picture's positions: rows of a table of `2 HIGH - 1` x `2 WIDE - 1`."""
    down, right = (axis[:, None] - axis for axis in (first, second))
    return (down + HIGH - 1) * (2 * WIDE - 1) + right + WIDE - 1


class TorchLayer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.up = torch.nn.LayerNorm(D), torch.nn.Linear(D, D)
        self.after, self.down = torch.nn.LayerNorm(D), torch.nn.Linear(D, D)

    def forward(self, x):
        x = x + self.up(self.before(x)).tanh()
        return x + self.down(self.after(x))


class TorchGrid(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros((2 * HIGH - 1) * (2 * WIDE - 1), 1))
        self.layers = torch.nn.ModuleList(TorchLayer() for _ in range(3))
        at = torch.arange(HIGH * WIDE)
        self.register_buffer("index", distances(at // WIDE, at % WIDE))

    def forward(self, x):
        bias = self.table[self.index.view(-1)].view(*self.index.shape, -1)
        x = x + bias[..., 0].softmax(-1) @ x
        for layer in self.layers:
            x = layer(x)
        return x


def grid(weights, x, bug):
    def norm(name, x):
        centered = x - x.mean(-1, keepdims=True)
        x = centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        return tap(name, x * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    def linear(name, x):
        return tap(name, x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    at = jnp.arange(HIGH * WIDE)
    down, right = (at % HIGH, at // HIGH) if bug == "columns" else (at // WIDE, at % WIDE)
    index = distances(down, -right if bug == "mirrored" else right)
    x = x + jax.nn.softmax(weights["table"][index][..., 0], -1) @ x
    for i in {"reverse": (2, 1, 0), "exchanged": (0, 2, 1), "one": (0, 0, 0)}.get(bug, (0, 1, 2)):
        before, up, after, down = (f"layers.{i}.{name}" for name in ("before", "up", "after", "down"))
        if bug == "post":
            x = norm(before, x + jnp.tanh(linear(up, x)))
            x = norm(after, x + linear(down, x))
        else:
            x = x + jnp.tanh(linear(up, norm(before, x)))
            x = x + linear(down, norm(after, x))
    return x


BUGS = {
    "columns": "looks up rows of 2 x 3 positions, column by column",
    "mirrored": "looks up rows of a grid of 3 x 5, its second axis from the other end",
    "post": "before and after where they are; jax has each after its sum (post-norm)",
    "reverse": "torch runs layers in their order; jax runs them from the last to the first",
    "exchanged": "torch runs layers in their order; jax exchanges 1 and 2",
    "one": "torch runs layers with weights of their own; jax runs all of them with the weights of the first",
}


@pytest.mark.parametrize("name", usually(["", *BUGS], "", "mirrored"))
def test_causes_in_places_and_rows(name):
    theirs = excite(TorchGrid().eval(), seed=1)
    weights = {key: jnp.asarray(array.detach().numpy()) for key, array in theirs.named_parameters()}
    report = compare(theirs, weights, (X,), call_jax=lambda w, x: grid(w, x, name), checks=("local",), tier="A")
    assert (report.status == "equal") == (not name), str(report)
    assert not name or BUGS[name] in report.diverging[0].cause, str(report)


class TorchNormed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(D, D), torch.nn.LayerNorm(D)

    def forward(self, x):
        return self.norm(self.linear(x))


class TorchBlock(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.branch = TorchNormed()

    def forward(self, x):
        return (self.branch(x) + x).tanh()


class Normed(nnx.Module):
    def __init__(self, theirs):
        rngs = nnx.Rngs(0)
        self.linear, self.norm = nnx.Linear(D, D, rngs=rngs), nnx.LayerNorm(D, epsilon=1e-5, rngs=rngs)
        self.linear.kernel[...] = jnp.asarray(theirs.linear.weight.detach().numpy().T)
        self.norm.scale[...] = jnp.asarray(theirs.norm.weight.detach().numpy())
        for ours, bias in ((self.linear, theirs.linear.bias), (self.norm, theirs.norm.bias)):
            ours.bias[...] = jnp.asarray(bias.detach().numpy())

    def __call__(self, x):
        return self.norm(self.linear(x))


class Block(nnx.Module):
    """Without its residual connection."""

    def __init__(self, theirs):
        self.branch = Normed(theirs.branch)

    def __call__(self, x):
        return jnp.tanh(self.branch(x))


def test_a_norm_inside_of_a_branch_is_not_elsewhere():
    theirs = excite(TorchBlock().eval(), seed=1)
    cause = compare(theirs, Block(theirs), (X,), checks=("local",), tier="A").diverging[0].cause
    assert "torch computes `self.branch(x) + x`" in cause
    assert "jax leaves out the second operand" in cause


class TorchWaves(torch.nn.Module):
    """A table in float32, in turns, as the first transformers have it; and two matrices of one shape."""

    def __init__(self):
        super().__init__()
        angles = torch.arange(9)[:, None] * 1e4 ** (-torch.arange(0, D, 2) / D)
        self.register_buffer("waves", torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)[None])
        self.mix, self.head = torch.nn.Linear(D, D, bias=False), torch.nn.Linear(D, D, bias=False)

    def forward(self, x):
        return self.head(self.mix(x + self.waves[:, : x.shape[1]]).tanh())


def waves(weights, x, bug):
    base = 1234.0 if bug == "base" else 1e4
    angles = jnp.arange(x.shape[1])[:, None] * base ** (-jnp.arange(0, D, 2) / D)
    both = jnp.sin(angles), jnp.cos(angles)
    table = jnp.concatenate(both, -1) if bug == "halves" else jnp.stack(both, -1).reshape(x.shape[1:])
    x = tap("mix", (x + table) @ weights["mix.weight"].T)
    return jnp.tanh(x) @ weights["mix.weight" if bug == "tied" else "head.weight"].T


WAVES = {
    "base": "torch sinusoidal base 10000; jax sinusoidal base 1234",
    "halves": "torch uses waves as it is; jax reads it as halves for neighbours (2i, 2i + 1)",
    "tied": "torch uses head; jax uses mix in its place",
}


@pytest.mark.parametrize("name", usually(WAVES, "base"))
def test_causes_in_a_table_of_waves(name):
    theirs = excite(TorchWaves().eval(), seed=1)
    weights = {key: jnp.asarray(array.detach().numpy()) for key, array in theirs.named_parameters()}
    report = compare(theirs, weights, (X,), call_jax=lambda w, x: waves(w, x, name), checks=("local",), tier="A")
    assert WAVES[name] in report.diverging[0].cause, str(report)


def test_rows_of_a_rotary_table_have_positions_of_their_own():
    positions = torch.tensor([[0, 0, 0, 1, 2, 3, 4], [0, 1, 2, 0, 1, 2, 3]]).double()
    angles = positions[..., None] * plain_rates(6, 1e4)
    angles = torch.cat([angles, angles], -1)
    assert torch.equal(rotary(angles.cos(), angles.sin(), lambda _: None).positions, positions)


def test_other_ids_have_a_row():
    found = {str(way): ids for way, ids in other_ids(torch.tensor([[2, 5, 1], [2, 0, 3]]), 6)}
    assert all(other.min() >= 0 and other.max() < 6 for other in found.values())
    assert np.array_equal(found["0 for 2 at the beginning"], [[0, 5, 1], [0, 0, 3]])
    assert "+1" not in found


class TorchPositions(torch.nn.Module):
    """A table of positions, which are counted from 0 in every row; padding stands at the left."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(9, D))

    def forward(self, x, mask):
        x = x + self.table[torch.arange(x.shape[1])]
        return (x.cumsum(1) * mask[..., None]).tanh()


COUNTED = {
    "places": (lambda mask: jnp.arange(mask.shape[1]), "EQUAL"),
    "seen": (
        lambda mask: (mask.cumsum(1) - 1).clip(0),
        "jax looks up rows that count unmasked tokens alone (`cumsum(mask) - 1`)",
    ),
    "mask": (lambda mask: mask, "jax looks up rows that are the mask itself, 0 and 1"),
}


@pytest.mark.parametrize("how", COUNTED)
def test_positions_that_are_looked_up_by_a_mask(how):
    rows, says = COUNTED[how]

    def call(weights, x, mask):
        return jnp.tanh((x + weights["table"][rows(mask)]).cumsum(1) * mask[..., None])

    torch_model = excite(TorchPositions(), seed=1)
    weights = {"table": jnp.asarray(torch_model.table.detach().numpy())}
    mask = (np.arange(HIGH * WIDE) >= np.array([[0], [2]])).astype(np.int32)
    told = {"call_jax": call, "checks": ("weights", "forward", "local"), "tier": "A"}
    assert says in compare(torch_model, weights, (X, mask), **told).verdict
