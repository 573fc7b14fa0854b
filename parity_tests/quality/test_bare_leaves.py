"""Plain functions over arrays in one dictionary, whose taps are called as the arrays are, or as these begin or end."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.call_sites import parameters_of
from jaxformer.parity.trace.jax_hooks import tap

pytestmark = pytest.mark.foreign

IDS, WIDTH, INNER, SCALE = 11, 6, 10, 3.49
X = np.random.default_rng(0).integers(0, IDS, (3, 7))


class ScaledEmbedding(torch.nn.Embedding):
    def forward(self, ids):
        return SCALE * super().forward(ids)


class Torch(torch.nn.Module):
    """The table is read twice: at the beginning and for the logits."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = ScaledEmbedding(IDS, WIDTH), torch.nn.RMSNorm(WIDTH, eps=1e-6)
        self.up, self.down = torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(INNER, WIDTH)
        self.last = torch.nn.RMSNorm(WIDTH, eps=1e-6)

    def forward(self, ids):
        x = self.table(ids)
        x = x + self.down(self.up(self.norm(x)).tanh())
        return 2 * torch.tanh(self.last(x) @ self.table.weight.T / 2)


def rms(w, name, x):
    return tap(name, x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * w[name])


def jaxs(w, ids, bug=""):
    x = tap("table", w["table"][ids]) * {"scale": 3.25, "rounded": 3.484375}.get(bug, SCALE)
    normed = rms(w, "norm", x)
    h = jnp.tanh(tap("up", (x if bug == "unused" else normed) @ w["up_w"] + w["up_b"]))
    x = (0 if bug == "residual" else x) + tap("down", h @ w["wdown"] + w["bdown"] * (2 if bug == "bias" else 1))
    logits = rms(w, "last", x) @ w["table"].T
    return logits if bug == "cap" else 2 * jnp.tanh(logits / 2)


def report(bug=""):
    theirs = excite(Torch().eval(), seed=1)
    arrays = {name: each.detach().numpy() for name, each in theirs.named_parameters()}
    weights = {name: arrays[f"{name}.weight"] for name in ("table", "norm", "last")}
    weights |= {"up_w": arrays["up.weight"].T, "up_b": arrays["up.bias"]}
    weights |= {"wdown": arrays["down.weight"].T, "bdown": arrays["down.bias"]}
    return compare(theirs, weights, (X,), call_jax=lambda w, ids: jaxs(w, ids, bug), tier="A")


def test_every_tap_is_compared_and_a_scale_behind_its_tap_is_no_difference():
    found = report()
    assert found.exit_code == 0, str(found)
    assert not found.taps
    assert "table, norm, last divide the work otherwise" in str(found)


@pytest.mark.parametrize(("bug", "named"), [("bias", "down"), ("cap", "(call)"), ("residual", "last")])
def test_nobody_else_is_accused(bug, named):
    """What goes back to a table that a wrong head reads is the head's."""
    assert [module.jax for module in report(bug).diverging] == [named]


@pytest.mark.parametrize(("bug", "says"), [("scale", "3.25"), ("rounded", "3.484375, that rounded to bfloat16")])
def test_another_scale_behind_a_tap_is_one_difference(bug, says):
    found = report(bug)
    assert found.verdict.startswith(f"DIFFERENT: norm: torch multiplies table by {SCALE}; jax by {says}"), str(found)
    assert [module.jax for module in found.diverging] == ["norm"]


def test_a_norm_that_nothing_reads_is_left_out_and_not_elsewhere():
    assert "up: torch applies norm; jax leaves it out" in report("unused").verdict


def test_parameters_by_the_name_of_a_tap():
    names = ["a.q_w", "a.q_b", "a.wk", "a.bk", "a.norm.w", "a.norm_2", "b.q"]
    assert parameters_of("a.q", names) == ["a.q_w", "a.q_b"]
    assert parameters_of("a.k", names) == ["a.wk", "a.bk"]
    assert parameters_of("a.norm", names) == ["a.norm.w"]
    assert parameters_of("b.q", names) == ["b.q"]
    assert parameters_of("a.v", names) == []
