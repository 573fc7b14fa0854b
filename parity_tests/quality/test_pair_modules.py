"""What has no parameters, or is called by the user's function itself, is compared by itself too, and no innocent is accused."""

import jax
import jax.numpy as jnp
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

B, T, D, V = 3, 5, 8, 7


class TorchTurn(torch.nn.Module):
    """A rotation, without parameters; gives two arrays."""

    def forward(self, x):
        y = torch.cat([-x[..., D // 2 :], x[..., : D // 2]], -1)
        return x.cos() + y, x.sin() - y


class TorchPart(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.turn = torch.nn.Linear(D, D), torch.nn.GELU(), TorchTurn()
        self.dropout, self.down = torch.nn.Dropout(0.1), torch.nn.Linear(D, D)

    def forward(self, x):
        one, other = self.turn(self.act(self.up(x)))
        return self.down(self.dropout(one * other))


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = TorchPart(), TorchPart(), torch.nn.Linear(D, V)

    def forward(self, x):
        return self.head(self.second(self.first(x))[:, 1])


class Gelu(nnx.Module):
    approximate = False

    def __call__(self, x):
        return jax.nn.gelu(x, approximate=self.approximate)


class Tanh(Gelu):
    approximate = True


class Turn(nnx.Module):
    def __call__(self, x):
        y = jnp.concatenate([-x[..., D // 2 :], x[..., : D // 2]], -1)
        return jnp.cos(x) + y, jnp.sin(x) - y


class Swapped(Turn):
    """Of the same name, and another meaning; its caller knows."""

    def __call__(self, x):
        one, other = super().__call__(x)
        return other, one


class Backwards(Turn):
    """It gives nothing like torch's."""

    def __call__(self, x):
        one, other = super().__call__(x)
        return -one, other - 3


class Part(nnx.Module):
    def __init__(self, kinds, activation):
        rngs = nnx.Rngs(0)
        self.up, self.down = nnx.Linear(D, D, rngs=rngs), nnx.Linear(D, D, rngs=rngs)
        setattr(self, activation, kinds.get("act", Gelu)())
        self.turn, self.activation = kinds.get("turn", Turn)(), activation

    def __call__(self, x):
        one, other = self.turn(getattr(self, self.activation)(self.up(x)))
        return self.down(one * other)


class Net(nnx.Module):
    def __init__(self, first=None, second=None, activation="act"):
        self.first, self.second = Part(first or {}, activation), Part(second or {}, activation)
        self.head = nnx.Linear(D, V, rngs=nnx.Rngs(0))


def call_jax(model, x, at=1):
    """The head is the function's own."""
    return model.head(model.second(model.first(x))[:, at])


@pytest.fixture(scope="module")
def theirs():
    return excite(TorchNet().eval(), seed=1)


def report_of(theirs, ours, call=call_jax):
    for name, module in theirs.named_modules():
        if isinstance(module, torch.nn.Linear):
            mine = ours
            for part in name.split("."):
                mine = getattr(mine, part)
            mine.kernel[...], mine.bias[...] = (jnp.asarray(array.detach().numpy().T) for array in (module.weight, module.bias))
    return compare(theirs, ours, (noise(B, T, D),), call_jax=call, checks=("weights", "forward", "local"), tier="A")


@pytest.mark.parametrize("activation", ["act", "nonlinearity"])
def test_modules_without_parameters_are_compared_by_themselves(theirs, activation):
    """By their names, or as the only ones on both sides that are left."""
    report = report_of(theirs, Net(first={"act": Tanh}, activation=activation))
    assert [(module.jax, module.torch) for module in report.diverging] == [(f"first.{activation}", "first.act")], str(report)
    assert report.diverging[0].cause.startswith("torch activation gelu; jax activation gelu by tanh")


def test_one_name_with_two_meanings_is_no_pair(theirs):
    report = report_of(theirs, Net(first={"turn": Swapped}, second={"act": Tanh}))
    assert [module.jax for module in report.diverging] == ["second.act"], str(report)
    assert "first.turn" in report.jax_only


def test_the_only_one_before_a_difference_is_known_by_its_name(theirs):
    report = report_of(theirs, Net(second={"turn": Backwards}))
    assert [(module.jax, module.torch) for module in report.diverging] == [("second.turn", "second.turn")], str(report)


def test_a_head_that_the_users_function_calls_is_not_accused(theirs):
    report = report_of(theirs, Net(), lambda model, x: call_jax(model, x, at=2))
    assert [module.jax for module in report.diverging] == ["(call)"], str(report)
    assert report.diverging[0].what == "input of head"


class TorchShort(torch.nn.Module):
    """As RegNet's layers: a shortcut that changes nothing, and an activation of another name than ours."""

    def __init__(self):
        super().__init__()
        self.up, self.shortcut, self.activation = torch.nn.Linear(D, D), torch.nn.Identity(), torch.nn.LeakyReLU(0.5)

    def forward(self, x):
        return self.activation(self.up(x) + self.shortcut(x))


class Same(nnx.Module):
    def __call__(self, x):
        return x


class Short(nnx.Module):
    """Its activation is no module."""

    def __init__(self):
        self.up, self.shortcut = nnx.Linear(D, D, rngs=nnx.Rngs(0)), Same()

    def __call__(self, x):
        return jax.nn.leaky_relu(self.up(x) + self.shortcut(x), 0.5)


def test_what_changes_nothing_is_no_activation():
    theirs = TorchShort().eval()
    theirs.requires_grad_(False)
    theirs.up.weight.mul_(0.05)
    theirs.up.bias.mul_(0.05)
    theirs.requires_grad_()
    ours = Short()
    ours.up.kernel[...], ours.up.bias[...] = theirs.up.weight.T.detach().numpy(), theirs.up.bias.detach().numpy()
    report = compare(theirs, ours, (noise(B, T, D),), tier="A")
    assert report.status == "equal", str(report)
    assert "shortcut" not in {module.jax for module in report.modules}
