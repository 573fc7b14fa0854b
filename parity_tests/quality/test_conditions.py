"""Calls inside of conditions and loops of any length are compared by themselves, and have gradients: without jit."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace import jax_hooks, programs

pytestmark = pytest.mark.slow

D, LAYERS = 4, 2
X = np.random.default_rng(0).standard_normal((3, 5, D)).astype(np.float32)


@pytest.fixture(autouse=True)
def _strict() -> None:
    """Others' ports have JAX's usual promotion."""


class Layer(torch.nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.norm, self.linear, self.activation = torch.nn.LayerNorm(D), torch.nn.Linear(D, D), activation

    def forward(self, x):
        return x + self.activation(self.linear(self.norm(x)))


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Layer(torch.nn.GELU()), Layer(torch.nn.Tanh())])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class OurLayer(nnx.Module):
    """One of the stack: `kind` is a number that jit does not know."""

    def __init__(self, rngs, *, approximate=False, epsilon=1e-5):
        self.norm, self.linear = nnx.LayerNorm(D, epsilon=epsilon, rngs=rngs), nnx.Linear(D, D, rngs=rngs)
        self.approximate = approximate

    def __call__(self, x, kind):
        def soft(layer, x):
            return jax.nn.gelu(layer.linear(layer.norm(x)), approximate=self.approximate)

        def hard(layer, x):
            return jnp.tanh(layer.linear(layer.norm(x)))

        return x + nnx.cond(kind == 0, soft, hard, self, x)


class Ours(nnx.Module):
    def __init__(self, **options):
        made = nnx.vmap(lambda rngs: OurLayer(rngs, **options))
        self.layers = nnx.split_rngs(splits=LAYERS)(made)(nnx.Rngs(0))

    def __call__(self, x):
        @nnx.scan(in_axes=(0, nnx.Carry, 0), out_axes=nnx.Carry)
        def run(layer, x, kind):
            return layer(x, kind)

        return run(self.layers, x, jnp.arange(LAYERS))


def counted(params, x):
    """A loop whose length jit does not know: JAX alone has no gradients of it."""
    return jax.lax.fori_loop(0, jnp.int32(LAYERS), lambda _, x: jnp.tanh(x @ params["weight"].T + params["bias"]), x)


class Repeated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(D, D)

    def forward(self, x):
        for _ in range(LAYERS):
            x = torch.tanh(self.linear(x))
        return x


def report_of(**options) -> Report:
    theirs, ours = excite(Theirs(), seed=1).eval(), Ours(**options)
    found = theirs.state_dict()
    for module, name, like in (("norm", "scale", "weight"), ("norm", "bias", "bias"), ("linear", "bias", "bias")):
        leaf = getattr(getattr(ours.layers, module), name)
        leaf.set_value(jnp.stack([found[f"layers.{i}.{module}.{like}"].numpy() for i in range(LAYERS)]))
    kernels = [found[f"layers.{i}.linear.weight"].numpy().T for i in range(LAYERS)]
    ours.layers.linear.kernel.set_value(jnp.stack(kernels))
    return compare(theirs, ours, (X,), tier="A")


def says(report: Report, name: str) -> str:
    return next(stage.says for stage in report.stages if stage.name == name)


def test_branches_are_opened():
    report = report_of()
    assert report.status == "equal", str(report)
    assert "jit hides calls in parity_tests/quality/test_conditions.py:" in says(report, "forward")
    assert not any("cond" in each for each in report.not_covered)


def test_the_module_in_a_branch_is_named():
    report = report_of(epsilon=1e-6)
    assert report.verdict.startswith("DIFFERENT: layers.0.norm: torch epsilon 1e-05; jax epsilon 1e-06")


def test_the_branch_that_runs_is_explained():
    report = report_of(approximate=True)
    assert report.verdict.startswith("DIFFERENT: layers.0: torch activation GELU; jax activation gelu by tanh"), report.verdict


def test_with_jit_they_stay_closed(monkeypatch):
    """The control."""
    monkeypatch.setattr(jax_hooks, "none_hidden", lambda _: nullcontext())
    assert any("cond" in each for each in report_of().not_covered)


@pytest.mark.parametrize("bias", [0.0, 1e-3])
def test_a_loop_of_any_length_has_gradients(bias):
    theirs = excite(Repeated(), seed=1).eval()
    params = {name: jnp.asarray(leaf.numpy()) for name, leaf in theirs.linear.state_dict().items()}
    report = compare(theirs, params, (X,), tier="A", call_jax=lambda p, x: counted(p, x) + bias * p["bias"].sum())
    assert report.status == ("different" if bias else "equal"), str(report)
    assert any(stage.name == "gradients" and stage.status == report.status for stage in report.stages)


def test_an_error_of_the_models_own_is_no_reason_to_run_it_again():
    calls = []

    def fails(x):
        calls.append(x)
        raise ValueError("no such size")

    with pytest.raises(ValueError, match="no such size"):
        programs.run_once(fails, X)
    assert len(calls) == 1
