"""Causes inside of torch's own attention modules, in ports of plain functions, and in hand-written attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.diagnose.rotary_rates import plain_rates, smoothings
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.foreign

B, T, D, N = 3, 5, 12, 2
H = D // N
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((B, T, D)).astype(np.float32)
VALID = np.arange(T) < np.array([[5], [3], [4]])
CHECKS = ("weights", "forward", "local")


class TorchLayer(torch.nn.Module):
    """torch's own, with its packed projection."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(D, N, 16, batch_first=True)

    def forward(self, x, valid):
        return self.layer(x, src_key_padding_mask=~valid)


class TorchShared(torch.nn.Module):
    """What a cross attention gives as its weights, with projections of three widths."""

    def __init__(self):
        super().__init__()
        self.cross = torch.nn.MultiheadAttention(D, N, batch_first=True, kdim=7, vdim=7)

    def forward(self, x, valid):
        return self.cross(x, x[..., :7], x[..., :7], key_padding_mask=~valid)[1]


class TorchSloped(torch.nn.Module):
    """Written by hand, with a bias that grows with the distance."""

    def __init__(self):
        super().__init__()
        self.three, self.out = torch.nn.Linear(D, 3 * D), torch.nn.Linear(D, D)

    def forward(self, x, valid):
        q, k, v = self.three(x).view(*x.shape[:2], N, 3, H).unbind(3)
        scores = torch.einsum("bqnh,bknh->bnqk", q, k) / H**0.5
        slopes = 2.0 ** (-8 / N * torch.arange(1, N + 1, dtype=x.dtype))
        far = (torch.arange(T)[:, None] - torch.arange(T)).abs().to(x.dtype)
        scores = scores - slopes[:, None, None] * far
        weights = scores.masked_fill(~valid[:, None, None], -torch.inf).softmax(-1)
        return self.out(torch.einsum("bnqk,bknh->bqnh", weights, v).reshape(x.shape))


def norm(p, name, x):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def by_head(x, bug):
    """`B T D` as `B N T H`."""
    if bug == "units first":
        return x.reshape(*x.shape[:2], -1, N).transpose(0, 3, 1, 2)
    return x.reshape(*x.shape[:2], N, -1).transpose(0, 2, 1, 3)


def weigh(scores, valid, bug):
    keys = valid[:, None, None]
    if bug == "after":
        return jax.nn.softmax(scores, -1) * keys
    if bug == "sink":
        powers = jnp.where(keys, jnp.exp(scores), 0)
        return powers / (1 + powers.sum(-1, keepdims=True))
    if bug == "weak":
        return jax.nn.softmax(jnp.where(keys, scores, -7.0), -1)
    keys = {"inverted": ~keys, "ignored": True}.get(bug, keys)
    return jax.nn.softmax(jnp.where(keys, scores, -jnp.inf), {"queries": -2, "rows": 0}.get(bug, -1))


def layer(p, x, valid, bug):
    p = {name.removeprefix("layer."): array for name, array in p.items()}
    bias = p["self_attn.in_proj_bias"].reshape(3, D)
    bias = bias.at[0].set(0) if bug == "no bias" else bias
    packed = x @ p["self_attn.in_proj_weight"].T + bias.reshape(-1)
    if bug == "packed by head":
        q, k, v = packed.reshape(B, T, N, 3, H).transpose(3, 0, 2, 1, 4)
    else:
        q, k, v = (by_head(each, bug) for each in jnp.split(packed, 3, -1))
    q, k, v = {"values for keys": (q, v, k), "keys for queries": (k, q, v)}.get(bug, (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / H ** (1 if bug == "scale" else 0.5)
    gathered = weigh(scores, valid, bug) @ v
    gathered = gathered if bug == "not moved" else gathered.transpose(0, 2, 1, 3)
    x = norm(p, "norm1", x + linear(p, "self_attn.out_proj", gathered.reshape(x.shape)))
    more = linear(p, "linear2", jax.nn.relu(linear(p, "linear1", x)))
    return norm(p, "norm1" if bug == "norm1 twice" else "norm2", x + more)


def shared(p, x, valid, bug):
    p = {name.removeprefix("cross."): array for name, array in p.items()}
    biases = jnp.split(p["in_proj_bias"], 3)
    q, k = (x[..., :n] @ p[f"{i}_proj_weight"].T + b for i, n, b in zip("qk", (D, 7), biases, strict=False))
    weights = weigh(by_head(q, bug) @ by_head(k, bug).swapaxes(-1, -2) / H**0.5, valid, bug)
    return {"first head": weights[:, 0], "largest": weights.max(1)}.get(bug, weights.mean(1))


def sloped(p, x, valid, bug):
    three = linear(p, "three", x)
    q, k, v = (
        three.reshape(B, T, 3, N, H).transpose(2, 0, 3, 1, 4)
        if bug == "packed in blocks"
        else (three.reshape(B, T, N, 3, H).transpose(3, 0, 2, 1, 4))
    )
    slopes = 2.0 ** (-8 / (4 if bug == "slopes of 4" else N) * jnp.arange(1, N + 1))
    slopes = slopes[::-1] if bug == "slopes turned" else slopes
    far = jnp.abs(jnp.arange(T)[:, None] - jnp.arange(T))
    scores = q @ k.swapaxes(-1, -2) / H**0.5 - slopes[:, None, None] * far
    gathered = (weigh(scores, valid, bug) @ v).transpose(0, 2, 1, 3)
    gathered = gathered.swapaxes(2, 3) if bug == "merged unit by unit" else gathered
    return linear(p, "out", gathered.reshape(x.shape))


MODULES = {"layer": (TorchLayer, layer), "shared": (TorchShared, shared), "sloped": (TorchSloped, sloped)}
BUGS = {
    "layer: units first": "queries and keys and values as (heads, width)",
    "layer: packed by head": "has queries, keys and values packed as (3, heads, width); jax as (heads, 3, width)",
    "layer: values for keys": "jax takes values for keys, keys for values",
    "layer: keys for queries": "jax takes keys for queries, queries for keys",
    "layer: not moved": "heads and positions of what is gathered",
    "layer: no bias": "torch adds layer.self_attn.in_proj_bias; jax leaves out the bias of queries",
    "layer: inverted": "jax applies it inverted",
    "layer: ignored": "jax does not apply it",
    "layer: after": "jax masks after the softmax",
    "layer: weak": "jax sets masked scores to -7",
    "layer: queries": "jax takes the softmax over queries",
    "layer: rows": "jax takes the softmax over the rows of the batch",
    "layer: scale": "jax multiplies the scores by 0.40824829 = 1/sqrt(6) more",
    "layer: norm1 twice": "torch uses layer.norm2; jax uses layer.norm1 in its place",
    "shared: first head": "`attn_output_weights.mean(dim=1)` (functional.py:",
    "shared: largest": "jax has amax there",
    "shared: units first": "queries and keys and values as (heads, width)",
    "sloped: packed in blocks": "jax as (3, heads, width)",
    "sloped: slopes of 4": "jax has ALiBi's slopes as 2^(-8 i / 4), i from 1",
    "sloped: slopes turned": "jax has ALiBi's slopes from the last head to the first",
    "sloped: weak": "jax sets masked scores to -7",
    "sloped: sink": "jax has a score of 0 beside the keys",
    "sloped: after": "jax masks after the softmax, not before it",
    "sloped: merged unit by unit": "what is gathered as (heads, width)",
}


def report_of(kind, bug):
    theirs, ours = MODULES[kind]
    model = excite(theirs().eval(), seed=1)
    weights = {name: jnp.asarray(array) for name, array in model.state_dict().items()}
    return compare(model, weights, (X, VALID), call_jax=lambda p, x, v: ours(p, x, v, bug), checks=CHECKS, tier="A")


QUICK = ("layer: inverted", "shared: first head", "sloped: slopes of 4", "sloped: weak")


@pytest.mark.parametrize("case", usually(BUGS, *QUICK))
def test_causes_inside_of_attention(case):
    report = report_of(*case.split(": "))
    assert report.exit_code == 1
    assert BUGS[case] in report.verdict, str(report)


@pytest.mark.parametrize("kind", MODULES)
def test_ports_of_attention_that_are_right(kind):
    assert report_of(kind, "").status == "equal"


def test_scaled_rates_with_another_smoothing():
    """Rates of which the slow ones are divided by 8, and one between by less. Llama 3's factor is straight over the rates:
    -1 / 3 at rate 0."""
    plain = plain_rates(8, 500.0)
    parts = torch.tensor([1.0, 0.4, 0.125, 0.125], dtype=torch.float64)
    found = {how: rates / plain for how, _, rates in smoothings(plain * parts, 8)}
    assert torch.allclose(found["between_divided"], parts.where(parts != 0.4, 0.125))
    assert torch.allclose(found["smoothed_inversely"], parts.where(parts != 0.4, 0.725))
    assert torch.allclose(found["inverted"], 1.125 - parts)
    factor = (0.275 / 0.875 + 1 / 3) * plain / plain[1] - 1 / 3
    assert torch.allclose(found["unbounded_above"], 0.125 + 0.875 * factor.clamp(min=0))
    assert torch.allclose(found["unbounded_below"], 0.125 + 0.875 * factor.clamp(max=1))
    assert torch.allclose(found["turns_as_angles"], 0.125 + 0.875 * (2 * np.pi * (factor + 1 / 3) - 1 / 3).clamp(0, 1))
    assert not [*smoothings(plain, 8)]
