"""Causes do not ask what a port calls its parameters: torch says what they are."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

V, D, N, B, T = 11, 8, 2, 3, 5
NAMES = {
    "flax": ("scale", "bias", "kernel", "embedding"),
    "short": ("g", "b", "w", "e"),
    "greek": ("gamma", "beta", "matrix", "table"),
    "others'": ("bias", "kernel", "embedding", "scale"),
}
"""Of a gain, a bias, a weight and a table."""
CAUSES = {
    "norm": "torch epsilon 1e-05; jax epsilon 1e-06",
    "bare": "torch multiplies by the gain; jax does not multiply by the gain",
    "rms": "torch multiplies by 1 + gain; jax multiplies by the gain",
    "square": "torch uses its own weight; jax uses its weight transposed",
    "net.act": "torch activation gelu; jax activation gelu by tanh (`approximate=True`, the default of jax.nn.gelu)",
    "head": "torch uses its own weight; jax uses the weight of other",
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


class TorchPlaces(torch.nn.Module):
    """Sinusoids, as Vaswani et al. 2017 have them."""

    def __init__(self):
        super().__init__()
        self.token = torch.nn.Embedding(V, D)

    def forward(self, ids):
        rates = 10000.0 ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        angles = torch.arange(ids.shape[1])[:, None] * rates
        return self.token(ids) * D**0.5 + torch.stack([angles.sin(), angles.cos()], -1).flatten(-2)


def torch_attention(q, k, v):
    q, k, v = (each.unflatten(-1, (N, -1)).transpose(1, 2) for each in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)


class TorchSeparate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(D, D) for _ in range(4))

    def forward(self, x):
        return self.out(torch_attention(self.q(x), self.k(x), self.v(x)))


class TorchPacked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)

    def forward(self, x):
        return self.out(torch_attention(*self.qkv(x).chunk(3, -1)))


class TorchGated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (torch.nn.Linear(D, D) for _ in range(3))

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))


class TorchModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.separate, self.packed, self.gated = TorchPlaces(), TorchSeparate(), TorchPacked(), TorchGated()
        self.head = torch.nn.Linear(D, V)

    def forward(self, ids):
        return self.head(self.gated(self.packed(self.separate(self.places(ids)))))


class Arrays(nnx.Module):
    """torch's weights under names of its own; a call looks ids up, or is a linear layer without its bias if asked to."""

    def __init__(self, theirs, names, *, biased=True):
        self.names, self.biased = names, biased
        for name, tensor in theirs.named_parameters():
            array = tensor.detach().numpy()
            if isinstance(theirs, torch.nn.Embedding):
                setattr(self, names[3], nnx.Param(jnp.asarray(array)))
            else:
                setattr(self, names[1] if name == "bias" else names[2], nnx.Param(jnp.asarray(array.T)))

    def __call__(self, x):
        _, bias, weight, table = self.names
        if hasattr(self, table) and not hasattr(self, bias):
            return getattr(self, table)[...][x]
        return x @ getattr(self, weight)[...] + self.biased * getattr(self, bias)[...]


class Parts(nnx.Module):
    """What torch's module has, by its names."""

    def __init__(self, theirs, names, **how):
        for name, child in theirs.named_children():
            setattr(self, name, Arrays(child, names, **how))


class Places(Parts):
    def __call__(self, ids):
        rates = 10000.0 ** (-jnp.arange(0, D, 2) / D)
        angles = jnp.arange(1, 1 + ids.shape[1])[:, None] * rates
        waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(-1, D)
        return self.token(ids) * D**0.5 + waves


def jax_attention(q, k, v, scale):
    q, k, v = (each.reshape(*each.shape[:2], N, -1).swapaxes(1, 2) for each in (q, k, v))
    return (jax.nn.softmax(q @ k.mT * scale, -1) @ v).swapaxes(1, 2).reshape(B, T, D)


class Separate(Parts):
    def __call__(self, x):
        return self.out(jax_attention(self.q(x), self.k(x), self.v(x), D**-0.5))


class Packed(Parts):
    def __call__(self, x):
        parts = self.qkv(x).reshape(B, T, N, 3, -1)
        return self.out(jax_attention(*(parts[..., i, :].reshape(B, T, D) for i in range(3)), (D // N) ** -0.5))


class Gated(Parts):
    def __call__(self, x):
        return self.down(jax.nn.relu(self.gate(x)) * self.up(x))


class Net(nnx.Module):
    """Every module has a bug of its own."""

    def __init__(self, theirs, names):
        self.places, self.separate = Places(theirs.places, names), Separate(theirs.separate, names)
        self.packed, self.gated = Packed(theirs.packed, names), Gated(theirs.gated, names)
        self.head = Arrays(theirs.head, names, biased=False)

    def __call__(self, ids):
        return self.head(self.gated(self.packed(self.separate(self.places(ids)))))


INSIDE = {
    "places": "torch counts positions from 0; jax counts positions from 1",
    "separate": "torch scales by 1/sqrt(head width); jax scales by 1/sqrt(d_model)",
    "packed": "torch has q, k and v packed in blocks: all of q, then k, then v; jax has q, k and v packed head by head, as "
    "`reshape(..., heads, 3, width)`: 2 heads, each with its own three",
    "gated": "torch activation silu; jax activation relu",
    "head": "torch adds the bias; jax does not add the bias",
}


@pytest.fixture(scope="module")
def model():
    return excite(TorchModel().eval(), seed=1)


@pytest.mark.parametrize("names", NAMES)
def test_causes_inside_modules_whatever_the_leaves_are_called(model, names):
    ids = np.random.default_rng(0).integers(0, V, (B, T))
    calls = {"call_torch": lambda model, ids: model(ids.long())}
    report = compare(model, Net(model, NAMES[names]), (ids,), checks=("weights", "forward"), tier="A", **calls)
    found = {module.jax: module.cause.split(" (residual")[0] for module in report.diverging}
    assert found == INSIDE, str(report)
