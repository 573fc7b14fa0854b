"""Causes in a block whose norms, rotations, masks and gates have many places, as a plain function with taps has them."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

import jaxformer
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

B, T, D, N, H, MID = 2, 7, 12, 2, 6, 10
X = noise(B, T, D, seed=1)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-5

    def forward(self, x):
        return self.weight * (x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt())


class Attention(nn.Module):
    """Norms of queries and keys before their heads part; pairs of neighbours are rotated."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(D, D) for _ in range(4))
        self.q_norm, self.k_norm = RMSNorm(D), RMSNorm(D)

    def forward(self, x, cos, sin):
        q, k, v = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x)), self.v_proj(x)
        q, k, v = (each.view(B, T, N, H).transpose(1, 2) for each in (q, k, v))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = (q @ k.mT * H**-0.5).masked_fill(hidden, -1e9).softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).reshape(B, T, D))


def rotated(x, cos, sin):
    """The tables come with one half twice, and are used with each rate twice in a row."""
    cos, sin = (table[..., : H // 2].repeat_interleave(2, -1) for table in (cos, sin))
    return x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.after_attention, self.after_mlp = Attention(), RMSNorm(D), RMSNorm(D)
        self.gate, self.up, self.mix, self.down = nn.Linear(D, MID), nn.Linear(D, MID), nn.Linear(MID, MID), nn.Linear(MID, D)

    def forward(self, x):
        angles = torch.arange(T)[:, None] * 10 ** -(torch.arange(H // 2) / 3).to(x.dtype)
        cos, sin = (torch.cat([table, table], -1) for table in (angles.cos(), angles.sin()))
        x = x + self.after_attention(self.attention(x=x, cos=cos, sin=sin))
        return x + self.after_mlp(self.down(nn.functional.silu(self.mix(self.gate(x) * self.up(x)))))


def turned(x, bug):
    angles = jnp.arange(T)[:, None] * 10 ** -(jnp.arange(H // 2) / 3) * (2 * jnp.pi if bug == "angles" else 1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if bug == "halves":
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)


def block(params, x, bug):
    def linear(name, x):
        return jaxformer.tap(name, x @ params[f"{name}.weight"].T + params[f"{name}.bias"])

    def rms(x, width=D):
        parts = x.reshape(*x.shape[:-1], -1, width)
        return (parts / jnp.sqrt((parts**2).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)

    def normed(name, x, width=D):
        return jaxformer.tap(name, params[f"{name}.weight"] * rms(x, width))

    def attention(x):
        q, k, v = (linear(f"attention.{name}_proj", x) for name in "qkv")
        if bug != "no norms":
            width = H if bug == "norms by head" else D
            q, k = (params[f"attention.{name}_norm.weight"] * rms(each, width) for name, each in (("q", q), ("k", k)))
        v = params["attention.k_norm.weight"] * rms(v) if bug == "values too" else v
        q, k, v = (each.reshape(B, T, N, H).swapaxes(1, 2) for each in (q, k, v))
        scores = turned(q, bug) @ turned(k, bug).mT * H**-0.5
        seen = jnp.tril(jnp.ones((T, T), bool))
        late = bug == "mask late"
        weights = jax.nn.softmax(scores if late else jnp.where(seen, scores, -1e9), -1) * (seen if late else 1)
        return linear("attention.o_proj", (weights @ v).swapaxes(1, 2).reshape(B, T, D))

    before = bug == "norms before"
    x = x + (attention(normed("after_attention", x)) if before else normed("after_attention", attention(x)))
    h = normed("after_mlp", x) if before else x
    gate, up = linear("gate", h), linear("up", h)
    if bug == "product late":
        h = jax.nn.silu(up * linear("mix", gate))
    else:
        h = linear("mix", gate * up)
        h = h if bug == "activation late" else jax.nn.silu(h)
    h = linear("down", h)
    h = jax.nn.silu(h) if bug == "activation late" else h
    return x + (h if before else normed("after_mlp", h))


CAUSES = {
    "no norms": "torch applies q_norm and k_norm; jax leaves them out",
    "norms by head": "torch applies q_norm and k_norm over 12 units; jax over the 6 units of each head",
    "values too": "torch uses v_proj as it is; jax applies k_norm to it",
    "halves": "torch has rotary pairs interleaved; jax has them half and half",
    "angles": "jax multiplies positions by 2 pi",
    "mask late": "jax masks after the softmax, not before it",
    "norms before": "torch has after_attention where it is; jax has it before attention",
    "product late": "`self.gate(x) * self.up(x)` (test_causes_in_one_block.py:62); jax does that after mix",
    "activation late": "jax does that after down",
}


@pytest.fixture(scope="module")
def theirs():
    return excite(Block().eval(), seed=2)


@pytest.mark.parametrize("bug", ["", *usually(CAUSES, "no norms", "halves", "activation late")])
def test_one_block(theirs, bug):
    params = {name: tensor.detach().numpy() for name, tensor in theirs.named_parameters()}
    checks = ("forward", "local")
    report = compare(theirs, params, (X,), call_jax=lambda params, x: block(params, x, bug), checks=checks, tier="A")
    assert report.exit_code == bool(bug), str(report)
    assert CAUSES.get(bug, "") in str(report), str(report)
