"""Causes in a state space: torch loops over positions, the port is one associative scan in a plain function."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise, usually

pytestmark = pytest.mark.foreign

T, D, F, N, G, K = 7, 5, 6, 4, 3, 4
X = noise(2, T, D, seed=1)


class TorchStates(torch.nn.Module):
    """A selective scan after a causal convolution, which pads on both sides and leaves out what comes last."""

    def __init__(self):
        super().__init__()
        self.packed, self.wide = torch.nn.Linear(D, 2 * F + G + 2), torch.nn.Linear(D, 2 * N, bias=False)
        self.near, self.out = torch.nn.Conv1d(F, F, K, groups=F, padding=K - 1), torch.nn.Linear(F, D)
        self.rate, self.step, self.skip = (torch.nn.Parameter(torch.ones(each)) for each in ((F, N), (F,), (F,)))

    def forward(self, x):
        inner, gate, groups, pair = self.packed(x).split([F, F, G, 2], -1)
        u = functional.silu(self.near(inner.mT)[..., :T].mT)
        dt = functional.softplus(groups.repeat_interleave(2, -1) + self.step) * functional.glu(pair, -1)
        b, c = self.wide(x).chunk(2, -1)
        decay = torch.exp(torch.einsum("btd,dn->btdn", dt, -torch.exp(self.rate)))
        fed = torch.einsum("btd,btn,btd->btdn", dt, b, u)
        h, found = torch.zeros(len(x), F, N, dtype=x.dtype), []
        for t in range(T):
            h = decay[:, t] * h + fed[:, t]
            found.append((h * c[:, t, None]).sum(-1))
        y = torch.stack(found, 1) + self.skip * u
        return self.out(y * functional.silu(gate))


def scanned(w, x, bug):
    cuts = [G, F + G, 2 * F + G] if bug == "packed" else [F, 2 * F, 2 * F + G]
    parts = jnp.split(tap("packed", x @ w["packed.weight"].T + w["packed.bias"]), cuts, -1)
    inner, gate, groups, pair = (parts[i] for i in ((1, 2, 0, 3) if bug == "packed" else range(4)))
    kernel = w["near.weight"][:, 0, ::-1] if bug == "flipped" else w["near.weight"][:, 0]
    padded = jnp.pad(inner, ((0, 0), (1, 2) if bug == "window" else (K - 1, 0), (0, 0)))
    near = sum(padded[:, i : i + T] * kernel[:, i] for i in range(K))
    u = jax.nn.silu(tap("near", near + w["near.bias"]))
    pair = pair[..., ::-1] if bug == "halves" else pair
    groups = jnp.tile(groups, 2) if bug == "tiled" else jnp.repeat(groups, 2, -1)
    dt = jax.nn.softplus(groups + w["step"])
    dt = jnp.minimum(dt, 0.8) if bug == "limit" else dt
    dt = dt * pair[..., :1] * jax.nn.sigmoid(pair[..., 1:])
    b, c = jnp.split(tap("wide", x @ w["wide.weight"].T), 2, -1)
    rate = w["rate"] if bug == "rate" else -jnp.exp(w["rate"])
    z = dt[..., None] * rate
    decay = 1 + z if bug == "Euler" else jnp.exp(z)
    weight = {"held": jnp.expm1(z) / rate, "no dt": jnp.ones_like(z)}.get(bug, dt[..., None])
    fed = weight * b[:, :, None] * u[..., None]
    _, h = jax.lax.associative_scan(lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1]), (decay, fed), axis=1, reverse=bug == "last")
    h = fed if bug == "forgotten" else h
    h = jnp.pad(h, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1] if bug == "late" else h
    y, skip = (h * c[:, :, None]).sum(-1), w["skip"] * u
    y = y * jax.nn.silu(gate) + skip if bug == "skip" else (y + skip) * jax.nn.silu(gate)
    return tap("out", y @ w["out.weight"].T + w["out.bias"] * (2 if bug == "bias" else 1))


BUGS = {
    "packed": ("near", "jax packs them in the order 2, 0, 1, 3"),
    "flipped": ("near", "torch uses near.weight as it is; jax flips it along its last axis"),
    "window": ("near", "jax pads as 'SAME' does, less before than after"),
    "halves": ("out", "jax exchanges its halves"),
    "tiled": ("out", "jax tiles the whole, 0 1 0 1 (torch's is `jnp.repeat`)"),
    "limit": ("out", "jax has 0.8 at most"),
    "rate": ("out", "then `-torch.exp(self.rate)` (test_state_spaces.py:34); jax does neither"),
    "Euler": ("out", "jax has 1 + x there"),
    "held": ("out", "jax multiplies it by (exp(x) - 1) / x, x being what `torch.exp("),
    "no dt": ("out", "jax leaves out the first operand"),
    "last": ("out", "torch takes its 7 steps from the first to the last; jax from the last to the first"),
    "forgotten": ("out", "`decay[:, t] * h + fed[:, t]` (test_state_spaces.py:38); jax leaves out the first operand"),
    "late": ("out", "`h * c[:, t, None]` (test_state_spaces.py:39); jax reads its first operand one step late"),
    "skip": ("out", "`torch.stack(found, 1) + self.skip * u` (test_state_spaces.py:40); jax does that after"),
    "bias": ("out", "torch adds the bias; jax adds the bias twice"),
}


@pytest.fixture(scope="module")
def theirs():
    return excite(TorchStates().eval(), seed=1)


def compared(theirs, bug):
    weights = {key: jnp.asarray(array) for key, array in theirs.state_dict().items()}
    return compare(theirs, weights, (X,), call_jax=lambda w, x: scanned(w, x, bug), checks=("local", "gradients"), tier="A")


def test_a_scan_that_is_right_is_equal(theirs):
    assert compared(theirs, "").status == "equal"


@pytest.mark.parametrize("name", usually(BUGS, "flipped"))
def test_causes_in_a_state_space(theirs, name):
    """The convolution gives torch more positions than jax: it alone is blamed for its own bugs."""
    report, (blamed, cause) = compared(theirs, name), BUGS[name]
    first = report.diverging[0]
    assert (first.jax, len(report.diverging)) == (blamed, 1), str(report)
    assert cause in first.cause, str(report)
