"""Modules that run more than once, and two of one kind where one is taken for the other."""

from typing import Any

import jax.numpy as jnp
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign
B, T, S, D, E = 2, 5, 4, 6, 8


class Reads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_q, self.norm_kv = torch.nn.LayerNorm(D), torch.nn.LayerNorm(D)
        self.q, self.kv, self.o = torch.nn.Linear(D, D), torch.nn.Linear(D, 2 * D), torch.nn.Linear(D, D)

    def forward(self, x, memory):
        q, (k, v) = self.q(self.norm_q(x)), self.kv(self.norm_kv(memory)).chunk(2, -1)
        return self.o((q @ k.mT).softmax(-1) @ v)


class Latents(torch.nn.Module):
    """The same attention reads the input twice; another one decodes."""

    def __init__(self):
        super().__init__()
        self.cross, self.decode = Reads(), Reads()

    def forward(self, x, memory):
        x = x + self.cross(x, memory)
        x = x + self.cross(x, memory)
        return self.decode(x, x)


def latents(wrong):
    def linear(p, name, x):
        return tap(name, x @ p[f"{name}.weight"].T + p[f"{name}.bias"])

    def norm(p, name, x):
        y = x - x.mean(-1, keepdims=True)
        y = y / jnp.sqrt((y * y).mean(-1, keepdims=True) + 1e-5)
        return tap(name, y * p[f"{name}.weight"] + p[f"{name}.bias"])

    def reads(p, name, x, memory):
        memory = memory if wrong and name == "cross" else norm(p, f"{name}.norm_kv", memory)
        q, (k, v) = linear(p, f"{name}.q", norm(p, f"{name}.norm_q", x)), jnp.split(linear(p, f"{name}.kv", memory), 2, -1)
        scores = jnp.exp(q @ k.mT)
        return tap(name, linear(p, f"{name}.o", scores / scores.sum(-1, keepdims=True) @ v))

    def forward(p, x, memory):
        x = x + reads(p, "cross", x, memory)
        x = x + reads(p, "cross", x, memory)
        return reads(p, "decode", x, x)

    return forward


@pytest.mark.parametrize("wrong", [False, True])
def test_a_norm_left_out_in_both_calls(wrong):
    theirs = excite(Latents().eval(), seed=1)
    params = {name: jnp.asarray(x.detach().numpy()) for name, x in theirs.state_dict().items()}
    inputs = noise(B, S, D, seed=1), 3 * noise(B, T, D, seed=2)
    verdict = compare(theirs, params, inputs, call_jax=latents(wrong), tier="A", checks=("forward", "local")).verdict
    said = "cross.kv: torch applies cross.norm_kv; jax leaves it out (residual"
    assert verdict.partition(": ")[2].startswith(said) if wrong else verdict.startswith("EQUAL")


class Convolved(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv1d(D, E, 3, padding=1), torch.nn.Conv1d(E, E, 3, padding=1)
        self.bn1, self.bn2 = torch.nn.BatchNorm1d(E), torch.nn.BatchNorm1d(E)

    def forward(self, x):
        y = torch.nn.functional.silu(self.bn1(self.conv1(x)))
        return 50.0 + torch.nn.functional.silu(self.bn2(self.conv2(y)))  # so that its norms differ most


class Ours(nnx.Module):
    def __init__(self, theirs: Any, wrong: bool):
        self.first, self.second = (nnx.Conv(width, E, (3,), rngs=nnx.Rngs(0)) for width in (D, E))
        self.n1, self.n2 = (nnx.BatchNorm(E, use_running_average=True, epsilon=1e-5, rngs=nnx.Rngs(0)) for _ in range(2))
        for mine, its in ((self.first, theirs.conv1), (self.second, theirs.conv2)):
            mine.kernel[...], mine.bias[...] = (x.detach().numpy() for x in (its.weight.permute(2, 1, 0), its.bias))
        for mine, its in ((self.n1, theirs.bn1), (self.n2, theirs.bn2)):
            mine.scale[...], mine.bias[...] = (x.detach().numpy() for x in (its.weight, its.bias))
            mine.mean[...], mine.var[...] = its.running_mean.numpy(), its.running_var.numpy()
        self.wrong = wrong

    def __call__(self, x):
        a, b = (self.n2, self.n1) if self.wrong else (self.n1, self.n2)
        x = x.swapaxes(1, 2)
        y = nnx.silu(a(self.first(x)))
        return 50.0 + nnx.silu(b(self.second(y))).swapaxes(1, 2)


@pytest.mark.parametrize("wrong", [False, True])
def test_two_norms_exchanged_are_one_cause(wrong):
    theirs = excite(Convolved().eval(), seed=1)
    report = compare(theirs, Ours(theirs, wrong), (noise(B, D, T, seed=3),), tier="A", checks=("forward", "local"))
    said = "torch uses bn1 and bn2 as named; jax exchanges the two (residual"
    assert report.verdict.partition(": ")[2].startswith(f"the model: {said}" if wrong else "forward"), report
    assert "beside it" not in report.verdict
