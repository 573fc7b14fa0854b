"""Causes in rotations of queries and keys: norms on their other side, tables that are rounded, positions that a mask counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import jaxformer as jf
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite

pytestmark = pytest.mark.foreign

B, T, N, H = 3, 7, 2, 6
D = N * H
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((B, T, D)).astype(np.float32)
VALID = (np.arange(T) >= np.array([[0], [2], [1]])) & (np.arange(T) < np.array([[T], [T], [T - 2]]))
RATES = 2000.0 ** -(np.arange(0, H, 2) / H)


class Attention(torch.nn.Module):
    """Queries and keys are normed on one side of the rotation, by modules or by a function."""

    def __init__(self, side, by="modules"):
        super().__init__()
        self.three, self.out = torch.nn.Linear(D, 3 * D, bias=False), torch.nn.Linear(D, D, bias=False)
        self.side, self.by = side, by
        if by == "modules":
            self.of_queries, self.of_keys = (torch.nn.RMSNorm(H, eps=1e-6) for _ in "qk")

    def normed(self, q, k):
        if self.by == "modules":
            return self.of_queries(q), self.of_keys(k)
        return plainly(q), plainly(k)

    def forward(self, x, cos, sin, mask):
        q, k, v = self.three(x).view(B, T, 3, N, H).unbind(2)
        if self.side == "before":
            q, k = self.normed(q, k)
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        if self.side == "after":
            q, k = self.normed(q, k)
        y = functional.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (q, k, v)), attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(2))


def plainly(x):
    weight = torch.linspace(0.5, 2, H, dtype=x.dtype)
    return functional.rms_norm(x, (H,), weight, 1e-6)


def turned(x, cos, sin):
    """Interleaved, of `B T N H`."""
    a, b = x[..., ::2], x[..., 1::2]
    cos, sin = cos[:, :, None, ::2], sin[:, :, None, ::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


class Model(torch.nn.Module):
    """One attention, whose tables and mask are made outside of it."""

    def __init__(self, side="before", by="modules", slower=1):
        super().__init__()
        self.rates = torch.from_numpy(RATES) / slower
        self.first, self.attention = torch.nn.Linear(D, D), Attention(side, by)

    def forward(self, x, valid):
        angles = torch.arange(T, dtype=x.dtype)[None, :, None] * self.rates.to(x.dtype)
        angles = angles.repeat_interleave(2, -1)
        ahead = torch.arange(T) - torch.arange(T)[:, None]
        mask = ahead + T * (1 - valid[:, None, None]) <= 0
        added = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, torch.finfo(x.dtype).min)
        return self.attention(self.first(x), angles.cos(), angles.sin(), added)


def port(bug, side="before"):
    """The same with plain functions."""

    def rms(x, weight):
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight

    def turn(x, angles):
        cos, sin = jnp.cos(angles)[:, :, None], jnp.sin(angles)[:, :, None]
        if kind := bug.get("tables"):
            cos, sin = (each.astype(kind).astype(x.dtype) for each in (cos, sin))
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        a, b = pairs[..., 0], pairs[..., 1]
        return jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)

    def call(p, x, valid):
        x = jf.tap("first", x @ p["first.weight"].T + p["first.bias"])
        q, k, v = jnp.moveaxis((x @ p["attention.three.weight"].T).reshape(B, T, 3, N, H), 2, 0)
        places = jnp.broadcast_to(jnp.arange(T), (B, T))
        if bug.get("counted"):
            places = jnp.cumsum(valid, -1) - 1
        angles = places[..., None] * bug.get("rates", RATES)
        if bug.get("held"):
            angles = np.float32(np.arange(T)[None, :, None] * bug["rates"])
        weight = np.linspace(0.5, 2, H)
        gains = [p.get(f"attention.of_{name}.weight", weight) for name in ("queries", "keys")]
        sides = bug.get("sides", (side, side))
        q, k = (rms(y, g) if s == "before" else y for y, g, s in zip((q, k), gains, sides, strict=True))
        q, k = turn(q, angles), turn(k, angles)
        q, k = (rms(y, g) if s == "after" else y for y, g, s in zip((q, k), gains, sides, strict=True))
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) / H**0.5
        if cap := bug.get("cap"):
            scores = cap * jnp.tanh(scores / cap)
        tri = np.tril(np.ones((T, T), bool), -1 if bug.get("strict") else 0)
        tri[0, 0] = True
        seen = tri & (np.ones_like(valid) if bug.get("unmasked") else valid)[:, None, None].astype(bool)
        weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(x.dtype).min), -1)
        y = jnp.einsum("bnts,bsnh->btnh", weights, v).reshape(x.shape) @ p["attention.out.weight"].T
        return jf.tap("attention", y)

    return call


def says(bug, **kinds):
    theirs = excite(Model(**kinds).eval(), seed=0)
    weights = {name: each.detach().numpy() for name, each in theirs.named_parameters()}
    inputs = (X, VALID.astype(np.int32))
    function = port(bug, kinds.get("side", "before"))
    return str(compare(theirs, weights, inputs, call_jax=function, checks=("forward", "local"), tier="A"))


BEHIND = {"sides": ("after", "after")}
CASES = {
    "nothing": ({}, {}, "EQUAL"),
    "both after": (BEHIND, {}, "torch applies attention.of_queries and attention.of_keys before the rotation; jax after it"),
    "keys after": ({"sides": ("before", "after")}, {}, "torch applies attention.of_keys before the rotation; jax after it"),
    "by a function": (BEHIND, {"by": "a function"}, ") before the rotation; jax after it"),
    "both before": (
        {"sides": ("before", "before")},
        {"side": "after"},
        "torch applies attention.of_queries and attention.of_keys after the rotation; jax before it",
    ),
    "bfloat16": (
        {"tables": jnp.bfloat16},
        {},
        "torch has rotary cosines and sines in full precision; jax rounds them to bfloat16",
    ),
    "float16": (
        {"tables": jnp.float16},
        {},
        "torch has rotary cosines and sines in full precision; jax rounds them to float16",
    ),
    "rates": (
        {"rates": np.asarray(jnp.asarray(RATES, jnp.bfloat16), float)},
        {},
        "rotary rates in full precision; jax rounds them to bfloat16",
    ),
    "another width": (
        {"rates": 2000.0 ** -(np.arange(0, H, 2) / (H + 2))},
        {},
        f"exponents 2i / {H + 2} for 2i / {H}",
    ),
    "a huge base": (
        {"rates": 5.5e9 ** -(np.arange(0, H, 2) / H)},
        {},
        "rotary base 2000; jax rotary base 5.5e+09 (residual ",
    ),
    "a base near torch's, in float32": (
        {"rates": 2020.0 ** -(np.arange(0, H, 2) / H), "held": True},
        {},
        "rotary base 2000; jax rotary base 2020 (residual ",
    ),
    "slowest first": ({"rates": RATES[::-1]}, {}, "jax has the rates in reverse order, the slowest first"),
    "a rate of two pairs": ({"rates": RATES[[0, 0, 1]]}, {}, "jax has one rate for two pairs: base^(-2 (i // 2) / width)"),
    "not inverted": ({"rates": 1 / RATES}, {}, "by base^(-2i / width); jax multiplies them by base^(2i / width)"),
    "undivided": (
        {},
        {"slower": 8},
        "torch divides the rotary frequencies of base 2000 by 8 (linear scaling); jax does not divide them",
    ),
    "counted": ({"counted": True}, {}, "jax has positions that count unmasked tokens alone"),
    "strict": ({"strict": True}, {}, "jax hides the query's own key, but in the first row"),
    "unmasked": ({"unmasked": True}, {}, "jax leaves out the padding"),
    "cap": ({"cap": 3.5}, {}, "jax caps the scores at 3.5: c tanh(scores / c)"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_different_in_a_rotation_is_named(case):
    bug, kinds, cause = CASES[case]
    assert cause in says(bug, **kinds)
