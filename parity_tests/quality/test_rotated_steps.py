"""Faults of rotations and caches in steps of decoding, where torch has a cache too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite

pytestmark = [pytest.mark.foreign, pytest.mark.slow]

V, N, H, STEPS = 11, 2, 6, 3
D = N * H
PROMPT = np.random.default_rng(0).integers(0, V, (2, 4)).astype(np.int32)
RATES = 100.0 ** -(np.arange(0, H - 2, 2) / H)
"""Of all units of a head but two."""


class Rotated(torch.nn.Module):
    """One attention, whose cache grows."""

    def __init__(self, *, fused):
        super().__init__()
        self.embed, self.three = torch.nn.Embedding(V, D), torch.nn.Linear(D, 3 * D)
        self.fused = fused

    def forward(self, ids, cache=None):
        start = cache[0].shape[2] if cache else 0
        x = self.embed(ids)
        q, k, v = (each.unflatten(-1, (N, H)).transpose(1, 2) for each in self.three(x).chunk(3, -1))
        angles = torch.arange(start, start + ids.shape[1], dtype=x.dtype)[:, None] * torch.from_numpy(RATES).to(x.dtype)
        angles = torch.cat([angles, angles], -1)
        q, k = (turned(each, angles.cos(), angles.sin()) for each in (q, k))
        if cache:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        seen = torch.ones(ids.shape[1], k.shape[2], dtype=torch.bool).tril(start)
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        else:
            y = (q @ k.mT / H**0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v
        return (x + y.transpose(1, 2).flatten(2)) @ self.embed.weight.T, (k, v)


def turned(x, cos, sin):
    part, rest = x[..., : H - 2], x[..., H - 2 :]
    a, b = part.chunk(2, -1)
    return torch.cat([part * cos + torch.cat([-b, a], -1) * sin, rest], -1)


def turn(x, places):
    """`B T N H`, pair by pair."""
    angles = (places[:, None] * RATES)[:, None]
    cos, sin, half = jnp.cos(angles), jnp.sin(angles), len(RATES)
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], -1)


def decode(p, ids, cache=None, bug=""):
    stepping = cache is not None
    bug = bug if stepping else ""
    start = cache[0].shape[1] if stepping else 0
    x = p["embed.weight"][ids]
    packed = (x @ p["three.weight"].T + p["three.bias"]).reshape(*ids.shape, 3, N, H)
    q, k, v = (packed[:, :, i] for i in range(3))
    places = (0 if bug == "from 0" else start + (bug == "far")) + jnp.arange(ids.shape[1])
    q = q if bug == "queries" else turn(q, places)
    k = k if bug == "keys" else turn(k, places)
    k, v = {"values twice": (v, v), "keys twice": (k, k), "exchanged": (v, k)}.get(bug, (k, v))
    if stepping:
        k, v = (jnp.concatenate([held, new], 1) for held, new in zip(cache, (k, v), strict=True))
    seen = np.tril(np.ones((ids.shape[1], k.shape[1]), bool), start)
    scores = jnp.where(seen, jnp.einsum("btnh,bsnh->bnts", q, k) / H**0.5, -1e30)
    y = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(scores, -1), v).reshape(x.shape)
    return (x + y) @ p["embed.weight"].T, (k, v)


def torch_steps(model):
    logits, cache = model(torch.from_numpy(PROMPT).long())
    for _ in range(STEPS):
        ids = yield logits
        logits, cache = model(ids.long()[:, None], cache)
        logits = logits[:, -1]
    yield logits


CASES = {
    "": "all tokens the same",
    "from 0": "jax as if the position of each step is 0, in rotations alone",
    "far": "jax as if the position of a step is one too far, in rotations alone",
    "keys": "jax as if the keys of steps are not rotated",
    "queries": "jax as if the queries of steps are not rotated",
    "values twice": "jax as if steps write values into the cache of keys",
    "keys twice": "jax as if steps write keys into the cache of values",
    "exchanged": "jax as if steps write keys and values into the caches of each other",
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("bug", CASES)
def test_a_fault_of_rotations_or_caches_is_named(bug, fused):
    def decoding(params):
        logits, cache = decode(params, jnp.asarray(PROMPT))
        for _ in range(STEPS):
            ids = yield logits
            logits, cache = decode(params, jnp.asarray(ids)[:, None], cache, bug)
            logits = logits[:, -1]
        yield logits

    theirs = excite(Rotated(fused=fused).eval(), seed=0)
    params = {name: each.detach().numpy() for name, each in theirs.named_parameters()}
    how = {"call_jax": lambda p, i: decode(p, i)[0], "call_torch": lambda m, i: m(i.long())[0]}
    report = compare(theirs, params, (PROMPT,), **how, checks=("forward",), tier="A", generate=(torch_steps, decoding))
    assert CASES[bug] in report.stages[-1].says, report
