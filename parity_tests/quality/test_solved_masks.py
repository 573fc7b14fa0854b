"""Masks that a port has otherwise: of queries for that of keys, with longer rows, of all rows together."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite

pytestmark = pytest.mark.foreign
B, T, S, D, V = 3, 7, 9, 12, 11


class Torch(torch.nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused, self.embed = fused, torch.nn.Embedding(V, D)
        self.q, self.k, self.v = (torch.nn.Linear(D, D, bias=False) for _ in range(3))

    def forward(self, ids, keys, valid):
        x, y = self.embed(ids), self.embed(keys)
        q, k, v = self.q(x), self.k(y), self.v(y)
        if self.fused:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=valid[:, None])
        scores = (q @ k.mT * D**-0.5).masked_fill(~valid[:, None], torch.finfo(q.dtype).min)
        return scores.softmax(-1) @ v


MASKS = {
    "right": lambda valid: valid[:, None],
    "queries": lambda valid: valid[:, :, None],
    "longer": lambda valid: (jnp.arange(S) < valid.sum(-1, keepdims=True) + 2)[:, None],
    "all rows": lambda valid: jnp.broadcast_to(valid.all(0), valid.shape)[:, None],
}
CAUSES = {
    "queries": "jax applies it transposed: queries and keys exchanged (",
    "longer": "jax has its mask true at 2 keys more in each row (",
    "all rows": "jax applies one for all rows: a key is seen where every row has it (",
}


def port(mask, p, ids, keys, valid):
    x, y = p["embed.weight"][ids], p["embed.weight"][keys]
    q, k, v = (x @ p[f"{name}.weight"].T for name, x in (("q", x), ("k", y), ("v", y)))
    scores = jnp.where(mask(valid), q @ k.swapaxes(1, 2) * D**-0.5, jnp.finfo(q.dtype).min)
    return jax.nn.softmax(scores, -1) @ v


def verdict_of(bug, fused):
    numbers, length = np.random.default_rng(0), T if bug == "queries" else S
    valid = np.arange(length) < np.array([[length], [4], [5]])
    theirs = excite(Torch(fused).eval(), seed=0)
    params = {name: jnp.asarray(x.detach().numpy()) for name, x in theirs.state_dict().items()}
    inputs = (*(numbers.integers(0, V, (B, n)) for n in (T, length)), valid)
    return compare(theirs, params, inputs, call_jax=partial(port, MASKS[bug]), tier="A", checks=("forward", "local")).verdict


@pytest.mark.parametrize("fused", [False, True])
def test_the_port_is_equal(fused):
    assert verdict_of("right", fused).startswith("EQUAL")


@pytest.mark.parametrize(("bug", "fused"), [(bug, False) for bug in CAUSES] + [("longer", True)])
def test_masks(bug, fused):
    assert CAUSES[bug] in verdict_of(bug, fused)


def test_a_fused_mask_of_queries():
    """torch's rows without keys are its own affair: jax's see all alike."""
    said = verdict_of("queries", True)
    assert "jax applies it transposed: queries and keys exchanged" in said
    assert "as if" not in said


apart = np.arange(T)[:, None] - np.arange(T + 1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(D, D, bias=False)

    def forward(self, x, mask):
        return (self.q(x) @ x.mT + mask[:, :, : x.shape[1]]).softmax(-1) @ x


class Cached(torch.nn.Module):
    """Attention whose mask is as long as a static cache, one key longer than what it holds."""

    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x):
        mask = torch.from_numpy(np.where((apart >= 0) & (apart < 3), 0.0, torch.finfo(x.dtype).min)).to(x)
        return self.attention(x, mask.expand(len(x), -1, -1))


class OwnMask(nnx.Module):
    def __init__(self, window):
        self.q, self.window = nnx.Linear(D, D, use_bias=False, rngs=nnx.Rngs(0)), window

    def __call__(self, x):
        seen = ((apart >= 0) & (self.window > apart))[:, :T]
        return jax.nn.softmax(jnp.where(seen, self.q(x) @ x.swapaxes(1, 2), jnp.finfo(x.dtype).min), -1) @ x


class Port(nnx.Module):
    def __init__(self, window):
        self.attention = OwnMask(window)

    def __call__(self, x):
        return self.attention(x)


@pytest.mark.parametrize(("window", "cause"), [(3, ""), (4, "has a window of 4 keys for 3"), (T, "leaves out the window")])
def test_a_mask_as_long_as_a_cache(window, cause):
    x = np.random.default_rng(0).normal(size=(B, T, D)).astype(np.float32)
    theirs = excite(Cached().eval(), seed=0)
    port = Port(window)
    port.attention.q.kernel[...] = jnp.asarray(theirs.attention.q.weight.detach().numpy().T)
    said = compare(theirs, port, (x,), tier="A", checks=("forward", "local")).verdict
    assert said.startswith("EQUAL") if not cause else f"torch applies the mask that it is given; jax {cause} (" in said


class Conditions(torch.nn.Module):
    def forward(self, x, y):
        return x * torch.all((x > 0) & (y > 0.25), 1, keepdim=True) + y


@pytest.mark.parametrize(
    ("reduced", "joined", "cause"),
    [
        (jnp.all, jnp.logical_and, "EQUAL"),
        (jnp.any, jnp.logical_and, "jax has any there"),
        (jnp.all, jnp.logical_or, "jax is true where either is, not where both are"),
    ],
)
def test_conditions(reduced, joined, cause):
    x, y = np.random.default_rng(0).uniform(-0.5, 1, (2, 29, 2)).astype(np.float32)

    def ours(params, x, y):
        return x * reduced(joined(x > 0, y > 0.25), 1, keepdims=True) + y

    assert cause in compare(Conditions(), {}, (x, y), call_jax=ours, tier="A", checks=("forward", "local")).verdict
