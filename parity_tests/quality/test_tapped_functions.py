"""Plain functions with taps in a residual stream: who is blamed for gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.recorded import check, dump
from jaxformer.parity.trace.jax_hooks import tap

pytestmark = pytest.mark.foreign

IDS, WIDTH, INNER = 11, 6, 10
X = np.random.default_rng(0).integers(0, IDS, (3, 7))
CHECKS = ("forward", "local", "gradients", "activation gradients")


class TorchPart(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, INNER), torch.nn.Linear(INNER, WIDTH)

    def forward(self, x):
        return self.down(self.up(x).tanh())


class TorchStream(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(IDS, WIDTH)
        self.gain, self.last = (torch.nn.Parameter(torch.ones(WIDTH)) for _ in range(2))
        self.one, self.two = TorchPart(), TorchPart()

    def forward(self, ids):
        x = self.table(ids)
        x = x + self.one(x * self.gain)
        x = x + self.two(x * self.gain)
        return x * self.last


def part(weights, name, x, bug):
    up, down = weights[f"{name}.up.weight"], weights[f"{name}.down.weight"]
    inner = bug.get(f"{name} act", jnp.tanh)(x @ up.T + weights[f"{name}.up.bias"])
    return tap(name, inner @ down.T + weights[f"{name}.down.bias"])


def stream(weights, ids, bug):
    """Neither the table nor the gains are tapped, so they are the call's."""
    x = weights["table.weight"][ids]
    x = bug.get("stream", lambda x: x)(x) + part(weights, "one", x * weights["gain"], bug)
    x = x + part(weights, "two", x * weights["gain"], bug)
    return x * bug.get("last", lambda x: x)(weights["last"])


@pytest.fixture(scope="module")
def theirs():
    return excite(TorchStream().eval(), seed=1)


STOPPED = jax.lax.stop_gradient
BUGS = {
    "another activation": ({"one act": jax.nn.gelu}, ["one"]),
    "a gradient inside": ({"two act": lambda x: jnp.tanh(STOPPED(x))}, ["two"]),
    "the residual stopped": ({"stream": STOPPED}, ["(call)"]),
    "both, one after the other": ({"one act": jax.nn.gelu, "last": STOPPED}, ["one", "(call)"]),
    "both in one stream": ({"two act": jax.nn.gelu, "stream": STOPPED}, ["two", "(call)"]),
}


@pytest.mark.parametrize("name", BUGS)
def test_the_code_around_is_blamed_for_gradients_of_its_own_alone(theirs, name):
    bug, named = BUGS[name]
    weights = {name: jnp.asarray(array) for name, array in theirs.state_dict().items()}
    report = compare(theirs, weights, (X,), call_jax=lambda w, ids: stream(w, ids, bug), checks=CHECKS, tier="A")
    assert [module.jax for module in report.diverging] == named, str(report)


def test_without_torch_the_code_around_is_not_blamed_for_what_a_wrong_function_sends_back(theirs, tmp_path):
    weights = {name: jnp.asarray(array) for name, array in theirs.state_dict().items()}
    dump(theirs, (X,), tmp_path / "dump", checks=CHECKS, tier="A")
    bug, named = BUGS["another activation"]
    report = check(tmp_path / "dump", weights, call_jax=lambda w, ids: stream(w, ids, bug), checks=CHECKS, tier="A")
    assert [module.jax for module in report.diverging] == named, str(report)


class TorchNorms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.one, self.two = torch.nn.Embedding(IDS, WIDTH), torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.table(ids).sin()
        return self.two(x + self.one(x).cos())


def normed(weights, name, x):
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)
    return tap(name, x * weights[f"{name}.weight"] + weights[f"{name}.bias"])


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (lambda x: 4 * jnp.sin(x), "torch computes `self.table(ids).sin()`"),  # for one alone, another epsilon gives it too
        (lambda x: jnp.sin(x) + jnp.roll(x, 1, -1) ** 3, "tried: "),
    ],
)
def test_a_stream_that_goes_on_to_all_norms_is_told_at_the_first(stream, says):
    theirs = excite(TorchNorms().eval(), seed=1)
    weights = {name: jnp.asarray(array) for name, array in theirs.state_dict().items()}

    def call(weights, ids):
        x = stream(weights["table.weight"][ids])
        return normed(weights, "two", x + jnp.cos(normed(weights, "one", x)))

    report = compare(theirs, weights, (X,), call_jax=call, checks=("forward", "local"), tier="A")
    assert [module.jax for module in report.diverging] == ["one"], str(report)
    assert says in report.verdict
    assert "1 after one differs too, and may be right" in str(report)


def test_a_search_that_is_cut_says_so(theirs, monkeypatch):
    monkeypatch.setattr("jaxformer.parity.runs.session.ALL", 0)
    weights = {name: jnp.asarray(array) for name, array in theirs.state_dict().items()}
    bug = {"one act": lambda x: jnp.sin(3 * x)}
    report = compare(theirs, weights, (X,), call_jax=lambda w, ids: stream(w, ids, bug), checks=("local",), tier="A")
    assert "as many as the budget of search_seconds = 60 allows" in report.verdict
    assert "jf.tap" not in report.verdict


def test_without_taps_they_are_advised(monkeypatch):
    monkeypatch.setattr("jaxformer.parity.runs.session.ALL", 0)
    torch_model = excite(TorchNorms().eval(), seed=1)
    weights = {name: jnp.asarray(array) for name, array in torch_model.state_dict().items()}

    def call(weights, ids):
        return jnp.sin(weights["table.weight"][ids] * 3) ** 3 + weights["one.weight"] + weights["two.weight"]

    report = compare(torch_model, weights, (X,), call_jax=call, checks=("forward", "local"), tier="A")
    assert (
        "search_seconds = 60 allows; it is shorter module by module: pass what each returns through jf.tap(" in report.verdict
    )


def test_a_tap_whose_name_no_parameter_has_is_said_to_be_so():
    theirs = excite(TorchNorms().eval(), seed=1)
    weights = {name: jnp.asarray(array) for name, array in theirs.state_dict().items()}

    def ours(weights, ids):
        x = tap("sine", jnp.sin(weights["table.weight"][ids]))
        return normed(weights, "two", x + jnp.cos(normed(weights, "one", x)))

    report = compare(theirs, weights, (X,), call_jax=ours, checks=("forward",), tier="A")
    says = "taps not compared: sine, since no parameter of jax's is called sine: name a tap as its parameters are named, as '"
    assert says in str(report), str(report)


class TorchLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()) for _ in range(4)
        )

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_taps_without_parameters_are_compared_in_every_layer_though_an_earlier_one_differs():
    """The activation of the second wrong layer is paired as those of the others are."""
    model, wrong = excite(TorchLayers().eval(), seed=0), {1: jax.nn.silu, 2: jnp.tanh}

    def call(held, x):
        for i in range(4):
            at, y = f"layers.{i}", x - x.mean(-1, keepdims=True)
            y = y / jnp.sqrt((y**2).mean(-1, keepdims=True) + 1e-5)
            y = tap(f"{at}.0", y * held[f"{at}.0.weight"] + held[f"{at}.0.bias"])
            y = tap(f"{at}.1", y @ held[f"{at}.1.weight"].T + held[f"{at}.1.bias"])
            x = x + tap(f"{at}.2", wrong.get(i, lambda y: jax.nn.gelu(y, approximate=False))(y))
        return x

    held = {name: jnp.asarray(value.numpy()) for name, value in model.state_dict().items()}
    x = np.random.default_rng(0).standard_normal((3, 5, WIDTH)).astype(np.float32)
    report = compare(model, held, (x,), call_jax=call, checks=CHECKS[:2], tier="A")
    assert [module.name for module in report.diverging] == ["layers.1.2", "layers.2.2"]
    assert ["silu" in report.diverging[0].cause, "tanh" in report.diverging[1].cause] == [True, True]
    assert report.taps == []
