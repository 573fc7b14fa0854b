"""What rounding alone moves beyond the lines is judged by torch's own rounding, and said to be; bugs are found all the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_ref.models
from jaxformer.convert.families.twin import TWIN
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.models import abstract
from jaxformer.nn import attention, feedforward
from jaxformer.parity import recording
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.recorded import check
from jaxformer.parity.recording import record_torch
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.archive import load, save
from jaxformer.parity.trace.call_sites import ArrayKey, Site
from jaxformer.parity.trace.reference import Rounding
from jaxformer.parity.trace.rounding_error import perturbation
from jaxformer.pytree import map_named
from parity_tests.support.helpers import gpt_config, noise, usually

CHECKS = ("forward", "local", "gradients", "activation gradients")
SAID = "ill-conditioned: torch's own rounding moves "
STEEP = 3000.0
"""Queries this much larger saturate attention, but for a few rows; through these come gradients that all but cancel."""


def twins(factor: float) -> tuple[Any, Any, tuple[np.ndarray, ...]]:
    config = gpt_config(n_layers=1, layers="unrolled", norm="none")
    model = excite(abstract(config), seed=1)
    model = map_named(lambda name, leaf: leaf * factor if name.endswith("query.kernel") else leaf, model)
    return load_torch(torch_ref.models.build(config), model).eval(), model, adversarial_inputs(config, 5, 9, seed=2)


@pytest.fixture(scope="module")
def steep():
    return twins(STEEP)


def report_of(sides: tuple[Any, Any, Any]) -> Report:
    twin, model, inputs = sides
    return compare(twin, model, inputs, rules=TWIN, call_torch=call_torch, call_jax=call_jax, checks=CHECKS, tier="A")


@pytest.fixture(scope="module")
def report(steep):
    return report_of(steep)


def test_it_is_said_where_rounding_decides(report):
    assert report.status == "equal", str(report)
    assert report.diverging == []
    assert [SAID in stage.says for stage in report.stages] == [False, False, True, True]
    (query,) = [module for module in report.modules if module.jax == "stack.blocks.0.attention.query"]
    assert query.gradient.peak > 1e-12
    assert query.gradient.allowed("gradient")[1] == 8 * query.gradient.rounding_peak < 1e-8
    assert Report.from_json(report.to_json()) == report


def test_the_lines_alone_would_call_it_different(steep, monkeypatch):
    monkeypatch.setattr(recording, "measure_rounding", lambda *given: Rounding())
    assert report_of(steep).status == "different"


def test_of_a_well_conditioned_model_nothing_is_said():
    sides = twins(1.0)
    assert record_torch(sides[0], sides[2], call_torch, tier="A", checks=CHECKS).rounding == Rounding()
    assert SAID not in str(report_of(sides))


def backwards(f: Callable[..., Any]) -> Callable[..., Any]:
    """Another gradient, the same value."""
    return lambda scores, mask: f(scores, mask) + 1e-8 * (scores - jax.lax.stop_gradient(scores))


BUGS = {
    "gelu": (feedforward.ACTIVATIONS, "gelu", lambda f: lambda x: f(x) * (1 + 1e-6), "feed_forward"),
    "scale": (
        attention,
        "attention_weights",
        lambda f: lambda q, k, *rest, **how: f(q * (1 + 1e-6), k, *rest, **how),
        "attention",
    ),
    "softmax's gradient": (attention, "masked_softmax", backwards, "attention"),
}


@pytest.mark.parametrize("bug", usually(BUGS, "softmax's gradient"))
def test_a_bug_is_found_all_the_same(steep, monkeypatch, bug):
    owner, name, make, diverging = BUGS[bug]
    if isinstance(owner, dict):
        monkeypatch.setitem(owner, name, make(owner[name]))
    else:
        monkeypatch.setattr(owner, name, make(getattr(owner, name)))
    report = report_of(steep)
    assert report.exit_code == 1
    assert [module.jax for module in report.diverging] == [f"stack.blocks.0.{diverging}"]


def test_a_dump_keeps_it(steep, report, tmp_path):
    save(record_torch(steep[0], steep[2], call_torch, tier="A", checks=CHECKS), tmp_path / "dump")
    later = check(load(tmp_path / "dump"), steep[1], rules=TWIN, call_jax=call_jax, checks=CHECKS, tier="A")
    assert str(later) == str(report)


X = noise(5, 7, 40)


class Sine(torch.nn.Module):
    """A wave so short that rounding shifts it."""

    def __init__(self, factor: float):
        super().__init__()
        self.layer, self.factor = torch.nn.Linear(40, 3, bias=False), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.factor * self.layer(x))


def sine_report(factor: float, ours: float) -> Report:
    """Against a plain function that sums in another order; nothing in it is seen."""
    theirs = Sine(factor)
    weights = {"kernel": jnp.asarray(theirs.layer.weight.detach().numpy().T)}

    def call(weights: Any, x: Any) -> Any:
        return jnp.sin(ours * (x[..., ::-1, None] * weights["kernel"][None, None, ::-1]).sum(-2))

    return compare(theirs, weights, (X,), call_jax=call, checks=CHECKS, tier="A")


JUDGED = ("forward", "gradients", "activation gradients")
"""All but `local`: nothing in the function is compared by itself."""


def test_a_function_that_holds_torchs_modules_is_judged_by_all_of_their_rounding():
    report = sine_report(1e6, 1e6)
    assert report.status == "equal", str(report)
    assert {stage.name: SAID in stage.says for stage in report.stages if stage.status != "n/a"} == dict.fromkeys(JUDGED, True)
    assert sine_report(1e6, 1e6 * (1 + 1e-10)).exit_code == 1


def test_what_float64_cannot_tell_is_not_called_equal():
    report = sine_report(1e11, 1e11)
    assert report.exit_code == 2
    assert "torch's own rounding moves the output by" in report.stages[0].says
    assert "layer.weight (torch's own rounding moves it by" in ", ".join(report.not_covered)


def moved(compute: Callable[[torch.Tensor], torch.Tensor]) -> Rounding:
    class Computing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return compute(x)

    return record_torch(Computing(), (X,), tier="A", checks=("forward",)).rounding


def test_what_cancels_is_measured():
    (found,) = {moved(lambda x: (x + 1e8) - 1e8).run[ArrayKey(Site("", 0), "output", 0)].peak}
    assert 2**-26 <= found <= 2**-25  # a bit or two of 1e8


EXACT = {
    "saturated": lambda x: torch.softmax(1e6 * x, -1).amax(-1) - 1,
    "few bits": lambda x: 2 * x - x - x,
    "masked": lambda x: torch.isinf(0 * x + torch.finfo(x.dtype).min).to(x.dtype),
    "copies": lambda x: torch.stack([x / 3]).repeat(2, 1, 1, 1).diff(dim=0),
}
"""All of it 0."""


@pytest.mark.parametrize("name", EXACT)
def test_what_is_exact_stays(name):
    assert moved(lambda x: 1 + 1e9 * EXACT[name](x)) == Rounding()


def test_a_model_that_refuses_is_judged_by_the_lines():
    calls = []

    def once(x: torch.Tensor) -> torch.Tensor:
        calls.append(x)
        if len(calls) > 1:
            raise ValueError
        return (x + 1e8) - 1e8

    assert moved(once) == Rounding()
    assert len(calls) == 2


SURE, CLASSES = 14.0, 6
targets = np.arange(16) % CLASSES


class Classifier(torch.nn.Module):
    """Sure of every class: the loss is 4e-6."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(SURE * torch.eye(CLASSES) + 0.1 * torch.arange(36.0).reshape(6, 6).sin())

    def forward(self, x, targets):
        return torch.nn.functional.cross_entropy(x @ self.weight, targets.long())


class Tail(torch.nn.Module):
    """GELU far below 0, where it is 1e-6."""

    def __init__(self, approximate):
        super().__init__()
        self.weight, self.approximate = torch.nn.Parameter(torch.tensor([0.6])), approximate

    def forward(self, x):
        return torch.nn.functional.gelu(x - 4 - self.weight, approximate=self.approximate)


def picked(scores, targets):
    return jnp.take_along_axis(scores, targets[:, None], 1)[:, 0]


LOSSES = {
    "the logits subtracted": lambda x, y: jnp.mean(jax.nn.logsumexp(x, -1) - picked(x, y)),
    "their largest subtracted first": lambda x, y: -jnp.mean(picked(jax.nn.log_softmax(x), y)),
    "one-hot": lambda x, y: -jnp.mean(jnp.sum(jax.nn.one_hot(y, CLASSES) * jax.nn.log_softmax(x), -1)),
}


def loss_report(loss: Callable[..., Any], **options: Any) -> Report:
    model = Classifier()
    x = np.eye(CLASSES)[targets] + 0.02 * np.random.default_rng(0).standard_normal((16, CLASSES))
    weights = {"weight": jnp.asarray(model.weight.detach().numpy())}
    given = x.astype(np.float32), targets.astype(np.int32)
    return compare(model, weights, given, call_jax=lambda p, x, y: loss(x @ p["weight"], y), **options)


@pytest.mark.foreign
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_sure_is_rounded_as_its_logits_are(name):
    report = loss_report(LOSSES[name])
    assert report.exit_code == 0, report


@pytest.mark.foreign
def test_a_bug_in_such_a_loss_is_found():
    report = loss_report(lambda x, y: 1.00001 * LOSSES["one-hot"](x, y), checks=("weights", "forward"), tier="A")
    assert report.exit_code == 1


@pytest.mark.foreign
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_the_tail_of_gelu_is_rounded_as_its_operand_is(approximate):
    model = Tail(approximate)
    weights = {"weight": jnp.asarray(model.weight.detach().numpy())}
    x = np.linspace(-0.5, 0.5, 7, dtype=np.float32)

    def call_jax(p, x):
        return jax.nn.gelu(x - 4 - p["weight"], approximate=approximate == "tanh")

    report = compare(model, weights, (x,), call_jax=call_jax)
    assert report.exit_code == 0, report


@pytest.mark.parametrize("operation", [torch.mul, lambda x, _: torch.ops.aten._unsafe_view(x, [15])])
def test_what_an_operation_reads_stays(operation):
    """Results are perturbed in place; one that shares its operand's memory is copied before."""
    x = torch.from_numpy(noise(3, 5)).double() / 3
    before = x.clone()
    with perturbation(0):
        y = operation(x, 1.0)
    assert torch.equal(x, before)
    assert not torch.equal(y.flatten(), before.flatten())
    assert torch.allclose(y.flatten(), before.flatten(), rtol=1e-15)
