"""Causes do not ask what a port calls its parameters: torch says what they are."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen

from jaxformer.parity.capture.jax_hooks import tap
from jaxformer.parity.compare import compare
from jaxformer.parity.explain.search import is_rounded_constant
from jaxformer.parity.probe.parameters import excite
from parity_tests.helpers import noise

V, D, B, T = 11, 8, 3, 5
NAMES = {
    "flax": ("scale", "bias", "kernel", "embedding"),
    "short": ("g", "b", "w", "e"),
    "greek": ("gamma", "beta", "matrix", "table"),
}
CAUSES = {
    "norm": "torch epsilon 1e-05; jax epsilon 1e-06",
    "bare": "torch gain as it is; jax gain left out",
    "rms": "torch gain plus 1; jax gain as it is",
    "square": "torch weight as it is; jax weight transposed",
    "net.act": "torch activation gelu; jax activation gelu by tanh",
    "head": "torch weight as it is; jax weight of other",
}


class TorchRMS(torch.nn.Module):
    """As Gemma has it: 1 + w."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(D))

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 + self.weight)


class TorchFeed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = torch.nn.Linear(D, D), torch.nn.GELU(), torch.nn.Linear(D, D)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.other = torch.nn.Embedding(V, D), torch.nn.Embedding(V, D)
        self.norm, self.bare, self.rms = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D), TorchRMS()
        self.square, self.net, self.head = torch.nn.Linear(D, D), TorchFeed(), torch.nn.Linear(D, V, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.rms(self.bare(self.norm(self.embed(ids) + self.other(ids))))
        return self.head(self.net(self.square(x)))


def normed(x, epsilon):
    return (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + epsilon) ** 0.5


def bugged(parameters, ids, names):
    """Every module has a bug of its own."""
    gain, bias, kernel, table = names
    p, tables = parameters, [parameters[name][table] for name in ("embed", "other")]
    x = sum(tap(name, each[ids]) for name, each in zip(("embed", "other"), tables, strict=True))
    x = tap("norm", normed(x, 1e-6) * p["norm"][gain] + p["norm"][bias])
    x = tap("bare", normed(x, 1e-5) + p["bare"][bias] + 0 * p["bare"][gain])
    x = tap("rms", x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p["rms"][gain])
    x = tap("square", x @ p["square"][kernel].T + p["square"][bias])
    y = tap("net.up", x @ p["net"]["up"][kernel] + p["net"]["up"][bias])
    y = tap("net.act", jax.nn.gelu(y, approximate=True))
    x = tap("net", tap("net.down", y @ p["net"]["down"][kernel] + p["net"]["down"][bias]))
    return tap("head", x @ tables[1].T + 0 * p["head"][kernel][0, 0])


@pytest.fixture(autouse=True)
def _as_users_run_it():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(scope="module")
def theirs():
    return excite(TorchNet().eval(), seed=1)


def ported(theirs, names):
    """torch's weights in nested dicts, kernels with their inputs first."""
    gain, bias, kernel, table = names
    tree: dict = {}
    for name, tensor in theirs.named_parameters(remove_duplicate=False):
        *path, last = name.split(".")
        at = tree
        for part in path:
            at = at.setdefault(part, {})
        array = tensor.detach().numpy()
        if array.ndim == 1:
            at[bias if last == "bias" else gain] = array
        else:
            at[table if path[0] in ("embed", "other") else kernel] = array if path[0] in ("embed", "other") else array.T
    return tree


@pytest.mark.parametrize("names", NAMES)
def test_causes_whatever_the_leaves_are_called(theirs, names):
    ids = np.random.default_rng(0).integers(0, V, (B, T))
    calls = {"call_torch": lambda model, ids: model(ids.long()), "call_jax": partial(bugged, names=NAMES[names])}
    report = compare(theirs, ported(theirs, NAMES[names]), (ids,), checks=("weights", "forward"), tier="A", **calls)
    found = {module.jax: module.cause.split(" (residual")[0] for module in report.diverging}
    assert found == CAUSES, str(report)


class LinenNorm(linen.Module):
    @linen.compact
    def __call__(self, x):
        g, b = (self.param(name, linen.initializers.zeros_init(), (D,)) for name in ("g", "b"))
        return normed(x, 1e-6) * g + b


class TorchNorm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(D)

    def forward(self, x):
        return self.norm(x)


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        return LinenNorm(name="norm")(x)


def test_a_linen_modules_own_names():
    theirs, x = excite(TorchNorm(), seed=1), noise(B, T, D)
    gain, bias = (tensor.detach().numpy() for tensor in theirs.parameters())
    ours = {"params": {"norm": {"g": gain, "b": bias}}}
    report = compare(theirs, ours, (x,), call_jax=LinenNet().apply, checks=("weights", "forward"), tier="A")
    assert report.verdict.startswith(f"DIFFERENT: norm: {CAUSES['norm']}"), str(report)


def test_float32_is_no_hint_where_an_epsilon_is():
    x = noise(B, T, D).astype(np.float64) * np.linspace(4, 9, T)[:, None]
    gain, bias = noise(D, seed=1).astype(np.float64), noise(D, seed=2).astype(np.float64)
    theirs, ours = (normed(x, epsilon) for epsilon in (3e-6, 2.5e-6))
    off = np.abs(ours - theirs).max() / np.abs(theirs).max()
    assert 1e-10 < off < 6e-8
    assert not is_rounded_constant(ours, theirs)
    assert not is_rounded_constant(ours * gain + bias, theirs * gain + bias, bias)


def test_float32_is_a_hint_where_it_may_be_why():
    x, table = noise(B, T, D).astype(np.float64), np.sin(np.arange(T * D).reshape(T, D))
    assert is_rounded_constant(x * np.float64(np.float32(0.1)), x * 0.1)
    assert is_rounded_constant(x + table.astype(np.float32), x + table)
    assert not is_rounded_constant(x, x)
    assert not is_rounded_constant(x * (1 + 1e-6), x)
