"""A decoder as one plain function, of which the output alone is compared: what is otherwise is so in every layer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.foreign
B, T, V, D, N, H, LAYERS = 3, 7, 11, 12, 3, 4, 2


class PerHead(torch.nn.Module):
    """A norm for each head `B N T H`."""

    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(H, bias=False) for _ in range(N)])

    def forward(self, x):
        return torch.cat([norm(each) for norm, each in zip(self.norms, x.split(1, 1), strict=True)], 1)


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat([-b, a], -1)


def rotate(x, cos, sin):
    return x * cos + rotate_half(x) * sin


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(D, N * H if i < 3 else D, bias=False) for i in range(4))
        self.q_norm, self.k_norm = PerHead(), PerHead()

    def forward(self, x, cos, sin, mask):
        q, k, v = (f(x).unflatten(-1, (N, H)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotate(self.q_norm(q), cos, sin), rotate(self.k_norm(k), cos, sin)
        scores = (q @ k.transpose(2, 3)) * H**-0.5 + mask
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between, self.attention = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D), Attention()
        self.gate, self.up, self.down = (torch.nn.Linear(*sizes) for sizes in ((D, 5), (D, 5), (5, D)))

    def forward(self, x, *more):
        x = x + self.attention(self.before(x), *more)
        y = self.between(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


class Decoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = torch.nn.Embedding(V, D), torch.nn.LayerNorm(D)
        self.layers = torch.nn.ModuleList([Layer() for _ in range(LAYERS)])

    def forward(self, ids, valid):
        x = self.embed(ids)
        angles = torch.arange(T)[:, None] * 100.0 ** (-torch.arange(0, H, 2) / H)
        angles = torch.cat([angles, angles], -1)
        seen = torch.ones(T, T, dtype=torch.bool).tril() & valid[:, None, None]
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin(), mask)
        return self.norm(x) @ self.embed.weight.T


def norm(p, name, x, epsilon=1e-5):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * p[f"{name}.weight"] + p.get(f"{name}.bias", 0.0)


def per_head(p, name, x, bug):
    order = [0] * N if bug == "shared" else range(N)[::-1] if bug == "turned" else range(N)
    return jnp.concatenate([norm(p, f"{name}.norms.{n}", x[:, i : i + 1]) for i, n in enumerate(order)], 1)


def turned(x, bug):
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([b if bug == "no sign" else -b, a], -1)


def port(bug):
    def rotated(x, cos, sin):
        return x * cos + turned(x, bug) * sin

    def attention(p, name, x, cos, sin, mask):
        q, k, v = (x @ p[f"{name}.{f}.weight"].T for f in "qkv")
        q, k, v = (each.reshape(B, T, N, H).swapaxes(1, 2) for each in (q, k, v))
        normed = [q, k] if bug == "after" else [per_head(p, f"{name}.q_norm", q, ""), k]
        if bug not in ("after", "no keys"):
            normed[1] = per_head(p, f"{name}.k_norm", k, bug)
        q, k = (rotated(each, cos, sin) for each in normed)
        if bug == "after":
            q, k = (per_head(p, f"{name}.{each}_norm", x, "") for each, x in (("q", q), ("k", k)))
        scores = q @ k.swapaxes(2, 3) * H**-0.5 + mask
        return (jax.nn.softmax(scores, -1) @ v).swapaxes(1, 2).reshape(B, T, N * H) @ p[f"{name}.o.weight"].T

    def branch(p, at, y):
        gate, up = (y @ p[f"{at}.{f}.weight"].T + p[f"{at}.{f}.bias"] for f in ("gate", "up"))
        return (jax.nn.silu(gate) * up) @ p[f"{at}.down.weight"].T + p[f"{at}.down.bias"]

    def forward(p, ids, valid):
        if bug == "biases":
            p |= {name: 0 * x for name, x in p.items() if name.endswith(("before.bias", "between.bias", "norm.bias"))}
        x = p["embed.weight"][ids]
        angles = jnp.arange(T)[:, None] * 100.0 ** (-jnp.arange(0, H, 2) / H)
        angles = jnp.concatenate([angles, angles], -1)
        seen = jnp.tril(jnp.ones((T, T), bool)) & valid[:, None, None]
        seen = seen & valid[:, None, :, None] if bug == "queries" else seen
        mask = jnp.where(seen, 0.0, jnp.finfo(jnp.float32).min)
        epsilon = 1e-3 if bug in ("epsilons", "all but one") else 1e-5
        for i in range(LAYERS):
            at = f"layers.{i}"
            tables = jnp.cos(angles), jnp.sin(angles), mask
            if bug == "after sums":
                x = norm(p, f"{at}.before", x + attention(p, f"{at}.attention", x, *tables))
                x = norm(p, f"{at}.between", x + branch(p, at, x))
                continue
            x = x + attention(p, f"{at}.attention", norm(p, f"{at}.before", x, epsilon), *tables)
            of_this = 1e-5 if bug == "all but one" and i == 1 else epsilon
            x = x + branch(p, at, norm(p, f"{at}.between", x, of_this))
        return norm(p, "norm", x) @ p["embed.weight"].T

    return forward


@pytest.fixture(scope="module")
def theirs():
    return excite(Decoder().eval(), seed=0)


def report_of(theirs: Any, bug: str) -> Any:
    numbers = np.random.default_rng(0)
    valid = np.ones((B, T), bool)
    valid[1, :2] = valid[2, 4:] = False
    params = {name: jnp.asarray(x.detach().numpy()) for name, x in theirs.state_dict().items()}
    inputs = numbers.integers(0, V, (B, T)), valid
    return compare(theirs, params, inputs, call_jax=port(bug), tier="A", checks=("forward", "local"))


CAUSES = {
    "no sign": "torch computes `-b` (test_untapped_decoder.py:32); jax leaves it out",
    "no keys": "torch applies layers.*.attention.k_norm; jax leaves it out",
    "shared": "k_norm.norms with weights of their own; jax runs all of them with the weights of the first",
    "turned": "k_norm.norms in their order; jax runs them from the last to the first",
    "after": "torch applies layers.*.attention.q_norm and layers.*.attention.k_norm before the rotation; jax after it",
    "queries": "jax masks padded queries too",
    "after sums": "torch has layers.*.before and layers.*.between where they are; jax has each after its sum (post-norm)",
    "biases": "torch uses norm.bias and layers.*.before.bias and layers.*.between.bias; jax leaves them out",
    "epsilons": "torch 1e-05 for layers.*.before.eps and layers.*.between.eps; jax 0.001 (residual ",
    "all but one": "torch 1e-05 for layers.*.before.eps and layers.0.between.eps; jax 0.001 (residual ",
}


def test_the_port_is_equal(theirs):
    assert report_of(theirs, "").status == "equal"


@pytest.mark.parametrize("bug", usually(CAUSES, "no sign", "after", "epsilons"))
def test_causes_in_every_layer(theirs, bug):
    assert CAUSES[bug] in report_of(theirs, bug).verdict
