"""Models that compute with complex numbers on their way, as the first Llama's rotations do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.convert.rules import Family, Rule, to_jax
from jaxformer.errors import InputError
from jaxformer.parity.attribute.checks import CHECK_NAMES
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.reference import run_torch

pytestmark = pytest.mark.foreign

IN, WIDTH, OUT = 5, 6, 7
X = np.random.default_rng(0).standard_normal((2, 3, IN)).astype(np.float32)
TURNS = torch.polar(torch.ones(3, WIDTH // 2), torch.arange(9.0).reshape(3, -1))
RULES = Family("mine", {}, (Rule("kernel", "weight", "transposed"), Rule("bias", "bias"), Rule("scale", "scale")))


class TorchCut(torch.nn.Module):
    """Gives complex numbers."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(IN, WIDTH)

    def forward(self, x):
        return torch.view_as_complex(self.linear(x).unflatten(-1, (-1, 2)))


class TorchTurn(torch.nn.Module):
    """Is given some."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, z, turns):
        return torch.view_as_real(z * turns).flatten(-2) * self.scale


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cut, self.turn, self.out = TorchCut(), TorchTurn(), torch.nn.Linear(WIDTH, OUT)
        self.register_buffer("turns", TURNS)

    def forward(self, x):
        return self.out(self.turn(self.cut(x), self.turns))


class Cut(nnx.Module):
    stretch = 1.0

    def __init__(self, rngs):
        self.linear = nnx.Linear(IN, WIDTH, rngs=rngs)

    def __call__(self, x):
        y = self.linear(x).reshape(*x.shape[:-1], -1, 2)
        return jax.lax.complex(y[..., 0], y[..., 1] * self.stretch)


class Turn(nnx.Module):
    sense = 1

    def __init__(self):
        self.scale = nnx.Param(jnp.ones(WIDTH))

    def __call__(self, z, turns):
        z = z * (turns if self.sense > 0 else turns.conj())
        return jnp.stack([z.real, z.imag], -1).reshape(*z.shape[:-1], -1) * self.scale


class Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.cut, self.turn, self.out = Cut(rngs), Turn(), nnx.Linear(WIDTH, OUT, rngs=rngs)
        self.turns = nnx.Variable(jnp.asarray(TURNS.numpy()))

    def __call__(self, x):
        return self.out(self.turn(self.cut(x), self.turns[...]))


@pytest.fixture(scope="module")
def sides():
    theirs = excite(TorchNet().eval(), seed=0)
    return theirs, to_jax(dict(theirs.named_parameters()), Net(), RULES)


def report_of(sides, checks=("weights", "forward", "local"), **options) -> Report:
    return compare(*sides, (X,), rules=RULES, checks=checks, **options)


def test_equal(sides):
    report = report_of(sides, CHECK_NAMES)
    assert report.status == "equal", str(report)
    assert {"cut", "turn"} <= {module.jax for module in report.modules}


@pytest.mark.parametrize(("kind", "name", "value", "diverging"), [(Cut, "stretch", 1.01, "cut"), (Turn, "sense", -1, "turn")])
def test_the_diverging_one_is_named(sides, monkeypatch, kind, name, value, diverging):
    monkeypatch.setattr(kind, name, value)
    assert [module.jax for module in report_of(sides).diverging] == [diverging]


@pytest.mark.parametrize("bug", [False, True])
def test_a_complex_output(sides, bug):
    calls = {
        "call_torch": lambda model, x: model.cut(x),
        "call_jax": lambda model, x: model.cut(x).conj() if bug else model.cut(x),
    }
    report = report_of(sides, **calls)
    assert {stage.name: stage.status for stage in report.stages if stage.name in ("forward", "float32")} == dict.fromkeys(
        ("forward", "float32"), "different" if bug else "equal"
    )
    assert "leave out the checks of gradients" in report_of(sides, CHECK_NAMES, **calls).verdict


def test_buffers_stay_complex_in_float32(sides):
    found = run_torch(sides[0], (X,), tier="B")
    np.testing.assert_allclose(found.low_precision["float32"], found.output, rtol=1e-4, atol=1e-4)


def test_complex_parameters_are_refused():
    theirs = torch.nn.Linear(IN, WIDTH, dtype=torch.complex64)
    with pytest.raises(InputError, match="first weight; complex parameters are not compared: hold two of floats"):
        compare(theirs, Net(), (X,))
