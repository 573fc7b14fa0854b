"""Gradients that stop on one side: the module that stops them is named, and what gets none."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

B, T, D, F = 3, 4, 5, 6
X = noise(B, T, D)


Stops = dict[str, Callable[[Any], Any]]


def block(linear: Callable[[str, Any], Any], tanh: Callable[[Any], Any], scale: Any, x: Any, stops: Stops) -> Any:
    """Of any framework; what is in `stops` goes through these functions."""

    def through(name: str, x: Any) -> Any:
        return stops.get(name, lambda x: x)(x)

    x = through("stem", tanh(linear("a", x)))
    return linear("c", x + through("branch", tanh(linear("b", x))) * through("scale", scale))


class Theirs(torch.nn.Module):
    def __init__(self, stops: Stops):
        super().__init__()
        self.a, self.b, self.c = torch.nn.Linear(D, F), torch.nn.Linear(F, F), torch.nn.Linear(F, D)
        self.scale, self.stops = torch.nn.Parameter(torch.ones(F)), stops

    def forward(self, x):
        return block(lambda name, x: getattr(self, name)(x), torch.tanh, self.scale, x, self.stops)


class Ours(nnx.Module):
    def __init__(self, theirs: Theirs, stops: Stops):
        rngs = nnx.Rngs(0)
        self.a, self.b, self.c = (nnx.Linear(*sizes, rngs=rngs) for sizes in ((D, F), (F, F), (F, D)))
        for name in "abc":
            mine, its = getattr(self, name), getattr(theirs, name)
            mine.kernel[...], mine.bias[...] = its.weight.T.detach().numpy(), its.bias.detach().numpy()
        self.scale, self.stops = nnx.Param(jnp.asarray(theirs.scale.detach().numpy())), stops

    def __call__(self, x):
        return block(lambda name, x: getattr(self, name)(x), jnp.tanh, self.scale[...], x, self.stops)


def report_of(torch_stops: Stops, jax_stops: Stops, *, plain: bool = False) -> Report:
    theirs = excite(Theirs(torch_stops), seed=1).eval()
    options: dict[str, Any] = {"tier": "A", "checks": ("forward", "gradients", "activation gradients")}
    if not plain:
        return compare(theirs, Ours(theirs, jax_stops), (X,), **options)

    def call(params: Any, x: Any) -> Any:
        def linear(name: str, x: Any) -> Any:
            return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]

        return block(linear, jnp.tanh, params["scale"], x, jax_stops)

    return compare(theirs, {n: p.detach().numpy() for n, p in theirs.named_parameters()}, (X,), call_jax=call, **options)


def detach(x: Any) -> Any:
    return x.detach()


def detach_first(x: Any) -> Any:
    return torch.cat([x[:, :2].detach(), x[:, 2:]], 1)


STOPPED = {
    "torch": "torch stops the {} (detach); jax does not: `stop_gradient` is missing",
    "jax": "torch lets the {} through; jax gives none (`stop_gradient`, or it does not read that)",
}
PLACES = {"stem": "gradient it sends to a", "branch": "gradient it sends to b", "scale": "gradient of scale"}
LOST = {"stem": "3 tensors in {}, and it does in {}: input 0, a.weight, a.bias", "branch": "2 tensors", "scale": "1 tensor"}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("side", STOPPED)
def test_the_module_that_stops_them_is_named(side, place):
    stops = {"torch": {place: detach}, "jax": {place: jax.lax.stop_gradient}}
    report = report_of(stops["torch"] if side == "torch" else {}, stops["jax"] if side == "jax" else {})
    other = "jax" if side == "torch" else "torch"
    assert report.verdict == f"DIFFERENT: the model: {STOPPED[side].format(PLACES[place])}"
    assert f"no gradient comes to {LOST[place].format(side, other)}" in report.stages[1].says


@pytest.mark.parametrize("side", STOPPED)
def test_a_plain_function_tells_what_gets_none(side):
    stops: list[Stops] = [{"branch": detach}, {}] if side == "torch" else [{}, {"branch": jax.lax.stop_gradient}]
    report = report_of(*stops, plain=True)
    assert [module.name for module in report.diverging] == ["(call)"]
    says = {"torch": "torch computes `x.detach()` (test_stopped_gradients.py:", "jax": 'torch computes `tanh(linear("b", x))`'}
    assert says[side] in report.diverging[0].cause
    assert "no gradient comes to 2 tensors in" in report.stages[1].says


def test_where_they_stop_in_part():
    report = report_of({"stem": detach_first}, {})
    assert report.verdict == "DIFFERENT: the model: torch's gradient is 0 in positions 0-1 of 4, where jax's is not"


def test_what_stops_on_both_sides_is_equal():
    report = report_of({"branch": detach}, {"branch": jax.lax.stop_gradient})
    assert report.status == "equal", str(report)
    assert np.isfinite(report.modules[0].local.relative)


def test_a_module_whose_output_is_not_used_is_not_blamed_for_it():
    report = report_of({}, {"branch": jnp.zeros_like})
    assert [module.jax for module in report.diverging] == [""], str(report)
