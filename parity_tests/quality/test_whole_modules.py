"""A change of torch's code is the cause only if it gives all arrays of the module that jax has too."""

import flax.nnx as nnx
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.diagnose import search
from jaxformer.parity.diagnose.mutation import Free
from jaxformer.parity.diagnose.solve import solved
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.probe import excite

pytestmark = pytest.mark.foreign
D, T = 6, 4


class Children(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = torch.nn.Linear(D, D), torch.nn.Linear(D, D), torch.nn.LayerNorm(D)


class Shifted(Children):
    """Moved by some rows, and back; what came from the other end is told apart."""

    def __init__(self):
        super().__init__()
        self.shift = 2

    def forward(self, x):
        y = self.norm(self.a(x.roll(-self.shift, 1)))
        y = y * (1.0 + torch.arange(T)[:, None] // self.shift)
        return self.b(y).roll(self.shift, 1)


class InSteps(Children):
    """Numbers of rows that are rounded to whole ones."""

    def __init__(self):
        super().__init__()
        self.rows = 12

    def forward(self, x):
        return self.b(self.a(x) * (1.0 + torch.arange(T)[:, None] * self.rows // 16))


class PlusOne(Children):
    def forward(self, x):
        return self.b(self.a(x) * (1 + x))


class Floors(Children):
    def forward(self, x):
        return self.b(self.a(x) * (1 + (torch.arange(T) * 1.1 + 0.45)[:, None].long()))


class Scaled(torch.nn.Linear):
    def forward(self, input):  # noqa: A002
        return super().forward(input) * 24**0.5


class ScaledInside(Children):
    def __init__(self):
        super().__init__()
        self.a = Scaled(D, D)

    def forward(self, x):
        return self.b(self.a(x))


class Twice(Children):
    def forward(self, x):
        return self.b(2 * self.norm(self.a(x)))


class Behind(Children):
    def forward(self, x):
        y = self.a(x)
        return self.norm(y + self.b(y))


class Chosen(Children):
    """The row that has a mark, or the first where none has it."""

    def __init__(self):
        super().__init__()
        self.mark, self.rows = 2, torch.tensor([5, 7, 2, 9])

    def forward(self, x):
        return self.b(self.a(x)[:, (self.rows == self.mark).int().argmax()])


class Heated(Children):
    """Times a number that is held as its logarithm."""

    def __init__(self):
        super().__init__()
        self.register_buffer("heat", torch.tensor(0.7))

    def forward(self, x):
        return self.a(x).cos() * self.heat.exp()


class Port(nnx.Module):
    def __init__(self, theirs, forward):
        self.a, self.b = (nnx.Linear(D, D, rngs=nnx.Rngs(0)) for _ in range(2))
        self.norm, self.forward = nnx.LayerNorm(D, epsilon=1e-5, rngs=nnx.Rngs(0)), forward
        for name in ("a", "b"):
            linear = getattr(theirs, name)
            values = {"kernel": linear.weight.T, "bias": linear.bias}
            nnx.update(getattr(self, name), {key: jnp.asarray(each.detach().numpy()) for key, each in values.items()})
        gain, bias = (jnp.asarray(each.detach().numpy()) for each in theirs.norm.parameters())
        nnx.update(self.norm, {"scale": gain, "bias": bias})

    def __call__(self, x):
        return self.forward(self, x)


def compared(kind, forward):
    theirs = excite(kind().eval(), seed=1)
    inputs = (np.random.default_rng(0).standard_normal((2, T, D)).astype(np.float32),)
    report = compare(theirs, Port(theirs, forward), inputs, tier="A", checks=("weights", "forward", "local"))
    (module,) = report.diverging
    return module


def without_parts(m, x):
    return jnp.roll(m.b(m.norm(m.a(jnp.roll(x, -2, 1)))), 2, 1)


def test_what_moves_another_array_away_from_jaxs_is_no_cause():
    """A shift of 4 gives what comes to the last child; and then the first is given other rows."""
    assert "leaves out the second operand" in compared(Shifted, without_parts).cause


def test_one_array_alone_tells_another_cause(monkeypatch):
    monkeypatch.setattr(search, "off", lambda *arrays: 0.0)
    cause = compared(Shifted, without_parts).cause
    assert cause
    assert "leaves out the second operand" not in cause


def test_a_number_that_others_fit_too_stands_beside_another_cause():
    cause = compared(Chosen, lambda m, x: m.b(m.a(x)[:, 0])).cause
    assert cause.startswith("torch mark 2; jax mark 1, as it seems: others fit too (residual ")
    assert ", or the same: torch computes `self.rows == self.mark`" in cause


def test_a_factor_that_nobody_writes_is_searched_for_in_the_code():
    assert "`self.heat.exp()`" in compared(Heated, lambda m, x: jnp.cos(m.a(x)) * np.float32(0.7)).cause


def test_differences_of_one_module_are_named_beside_each_other():
    module = compared(Twice, lambda m, x: m.b(m.norm(1.5 * m.a(x))))
    assert "input of norm: torch takes a as it is; jax multiplies it by 1.5" in module.cause
    assert "; beside it, input of b: torch multiplies norm by 2; jax does not" in module.cause


def test_what_explains_one_of_two_differences_is_no_cause():
    module = compared(Twice, lambda m, x: m.b(2 * m.norm(9 * m.a(x)) + 0.01 * jnp.sin(7 * x) ** 3))
    assert module.cause == ""
    assert "its first difference is as if torch takes a as it is; jax multiplies it by 9" in module.looks
    assert "which does not give jax's input of b" in module.looks


def test_a_norm_before_its_branch_for_behind_the_sum():
    """Three arrays differ, and one change gives them all."""

    def before(m, x):
        y = m.a(x)
        return y + m.b(m.norm(y))

    assert compared(Behind, before).cause.startswith("torch has norm where it is; jax has it before b")


@pytest.mark.parametrize("rows", [8, 9])
def test_of_a_number_that_acts_in_steps_others_fit_too(rows):
    port = lambda m, x: m.b(m.a(x) * (1.0 + jnp.arange(T)[:, None] * rows // 16))  # noqa: E731
    assert compared(InSteps, port).cause.startswith("torch rows 12; jax rows 8, as it seems: others fit too")


def test_a_number_left_out_acts_in_no_steps():
    assert "others fit too" not in compared(PlusOne, lambda m, x: m.b(m.a(x) * x)).cause


def test_what_is_rounded_and_not_cut_off():
    module = compared(Floors, lambda m, x: m.b(m.a(x) * (1 + jnp.round(jnp.arange(T) * 1.1 + 0.45)[:, None])))
    assert "jax rounds to the nearest whole number, halves up (" in module.cause


def test_of_few_numbers_that_are_rounded_others_fit_too():
    module = compared(Floors, lambda m, x: m.b(m.a(x) * (1 + jnp.ceil(jnp.arange(T) * 1.1 + 0.45)[:, None])))
    assert "jax rounds up (`ceil`), as it seems: others fit too" in module.cause


def test_a_scale_that_stands_elsewhere_is_accused_where_its_number_is_wrong():
    """torch has it inside of the child, jax after it."""
    module = compared(ScaledInside, lambda m, x: m.b(m.a(x) * 4.90625))
    assert module.name == "the model"
    assert module.cause == "torch multiplies a by 4.89897949 = sqrt(24); jax by 4.90625, that rounded to bfloat16"


def test_a_number_near_0_is_not_0_where_0_gives_something_else():
    """As of a mask with numbers that are finite."""
    one, other = np.random.default_rng(0).standard_normal((2, 9))
    assert solved(lambda x: one + x * other if x else one + 1, Free(1.0), one + other, one, EXPLAINED) is None
