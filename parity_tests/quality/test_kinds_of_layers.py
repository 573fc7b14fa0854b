"""Layers of two kinds, in an NNX port: one of them is taken for one of the other kind, or has its norms after the rotation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite

pytestmark = [pytest.mark.foreign, pytest.mark.slow]

B, T, N, H, NEAR = 2, 7, 2, 4, 3
D = N * H
KINDS = ("near", "near", "far")
BASES = {"near": 100.0, "far": 5000.0}
X = np.random.default_rng(0).standard_normal((B, T, D)).astype(np.float32)


class Attention(torch.nn.Module):
    """What it sees, and how fast it turns, is given."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (torch.nn.Linear(D, D, bias=False) for _ in "qkvo")
        self.q_norm, self.k_norm = (torch.nn.RMSNorm(H, eps=1e-6) for _ in "qk")

    def forward(self, x, tables, mask):
        q, k, v = (each(x).view(B, T, N, H).transpose(1, 2) for each in (self.q, self.k, self.v))
        q, k = (turned(each, *tables) for each in (self.q_norm(q), self.k_norm(k)))
        return self.o(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


def turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Layers(torch.nn.Module):
    """Two kinds of them, of which each has its own tables and mask."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(Attention() for _ in KINDS)

    def forward(self, x):
        apart = torch.arange(T)[:, None] - torch.arange(T)
        masks = {"far": apart >= 0, "near": (apart >= 0) & (apart < NEAR)}
        tables = {}
        for kind, base in BASES.items():
            angles = torch.arange(T, dtype=x.dtype)[:, None] * base ** -(torch.arange(0, H, 2, dtype=x.dtype) / H)
            angles = torch.cat([angles, angles], -1)
            tables[kind] = angles.cos(), angles.sin()
        for layer, kind in zip(self.layers, KINDS, strict=True):
            x = x + layer(x, tables[kind], masks[kind])
        return x


class Norm(nnx.Module):
    def __init__(self):
        self.weight = nnx.Param(jnp.ones(H))

    def __call__(self, x):
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * self.weight[...]


class Port(nnx.Module):
    """It makes its mask and its rotations by itself."""

    def __init__(self, kind, behind):
        self.q, self.k, self.v, self.o = (nnx.Linear(D, D, use_bias=False, rngs=nnx.Rngs(0)) for _ in "qkvo")
        self.q_norm, self.k_norm = Norm(), Norm()
        self.kind, self.behind = kind, behind

    def turned(self, x):
        angles = (jnp.arange(T)[:, None] * BASES[self.kind] ** -(jnp.arange(0, H, 2) / H))[:, None]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def __call__(self, x):
        q, k, v = (each(x).reshape(B, T, N, H) for each in (self.q, self.k, self.v))
        if self.behind:
            q, k = self.q_norm(self.turned(q)), self.k_norm(self.turned(k))
        else:
            q, k = self.turned(self.q_norm(q)), self.turned(self.k_norm(k))
        apart = np.arange(T)[:, None] - np.arange(T)
        seen = (apart >= 0) & (apart < (NEAR if self.kind == "near" else T))
        weights = jax.nn.softmax(jnp.where(seen, jnp.einsum("btnh,bsnh->bnts", q, k) / H**0.5, -jnp.inf), -1)
        return self.o(jnp.einsum("bnts,bsnh->btnh", weights, v).reshape(x.shape))


class Ports(nnx.Module):
    def __init__(self, kinds, behind):
        self.layers = nnx.List([Port(kind, behind) for kind in kinds])

    def __call__(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def says(kinds=KINDS, behind=False):
    theirs = excite(Layers().eval(), seed=0)
    held = {name: each.detach().numpy() for name, each in theirs.named_parameters()}
    port = Ports(kinds, behind)
    for path, param in nnx.to_flat_state(nnx.state(port, nnx.Param)):
        name = ".".join(map(str, path))
        param.set_value(jnp.asarray(held[name.replace("kernel", "weight")].T if "kernel" in name else held[name]))
    return str(compare(theirs, port, (X,), checks=("forward", "local"), tier="A"))


def test_the_same():
    assert "EQUAL" in says()


def test_a_layer_of_the_other_kind():
    found = says(kinds=("near", "far", "near"))
    assert "layers.1   torch uses rotary tables and mask as given; jax uses those that layers.2 is given" in found
    assert "layers.2   torch uses rotary tables and mask as given; jax uses those that layers.0 is given" in found


def test_norms_that_are_given_what_is_rotated():
    assert "input of layers.0.q_norm: torch applies q_norm before the rotation; jax after it" in says(behind=True)
