"""Both sides in training mode: batch norm's statistics and momentum, and what is dropped, of ports in three styles."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from torch.nn import functional

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.recorded import check
from jaxformer.parity.recording import record_torch
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.archive import load, save
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.foreign

B, C, H, W, V, RATE = 5, 4, 3, 6, 7, 0.3
X = np.random.default_rng(0).standard_normal((B, C, H, W)).astype(np.float32)
CHANNELS_LAST = (0, 2, 3, 1)


class Theirs(torch.nn.Module):
    """A norm on pictures, one on channels, and dropout by a module, a function and attention."""

    def __init__(self):
        super().__init__()
        self.first, self.lift = torch.nn.BatchNorm2d(C), torch.nn.Linear(C, V)
        self.drop, self.second = torch.nn.Dropout(RATE), torch.nn.BatchNorm1d(V, momentum=0.2)
        self.out = torch.nn.Linear(V, V)

    def forward(self, x):
        x = self.lift(self.first(x).mean((2, 3)))
        x = functional.dropout(self.second(self.drop(torch.tanh(x))), 0.1, self.training)
        return self.out(x)


@pytest.fixture(scope="module")
def theirs() -> Theirs:
    return excite(Theirs(), seed=1)


def arrays(model: torch.nn.Module) -> dict[str, Any]:
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


def named(flat: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A module's, without its path."""
    return {key.removeprefix(f"{name}."): value for key, value in flat.items() if key.startswith(f"{name}.")}


def normed(held: dict[str, Any], x: Any, momentum: float, **how: Any) -> tuple[Any, dict[str, Any]]:
    """Batch norm as a function: torch's, unless told otherwise. x: `B C ...`."""
    axes = tuple(i for i in range(x.ndim) if i != 1) if how.get("axes") is None else how["axes"]
    shape = [1, -1, *[1] * (x.ndim - 2)]
    mean, var = x.mean(axes), x.var(axes)
    new = x.var(axes, ddof=how.get("ddof", 1))
    state = {"running_mean": held["running_mean"], "running_var": held["running_var"]}
    for _ in range(how.get("times", 1)):
        state = {
            "running_mean": (1 - momentum) * state["running_mean"] + momentum * mean,
            "running_var": (1 - momentum) * state["running_var"] + momentum * new,
        }
    if how.get("inference"):
        mean, var = held["running_mean"], held["running_var"]
    scale = held["weight"] / jnp.sqrt(var + how.get("eps", 1e-5))
    return (x - mean.reshape(shape)) * scale.reshape(shape) + held["bias"].reshape(shape), state


def dropped(x: Any, rate: float, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)


Plain = Callable[[Any, Any], Any]


def plain(
    *, first: Any = None, second: Any = None, rate: float = RATE, last: float = 0.1, moved: bool = False, drop: Any = dropped
) -> Plain:
    """A function of a flat dict, which gives what torch's model gives and the new statistics."""

    def call(params: dict[str, Any], x: Any) -> Any:
        keys = jax.random.split(jax.random.key(0), 3)
        x, one = normed(named(params, "first"), x, **{"momentum": 0.1, **(first or {})})
        x = x.mean((2, 3)) @ params["lift.weight"].T + params["lift.bias"]
        x = jnp.tanh(x) if moved else drop(jnp.tanh(x), rate, keys[0])
        x, two = normed(named(params, "second"), x, **{"momentum": 0.2, **(second or {})})
        x = drop(x, rate, keys[0]) if moved else x
        x = drop(x, last, keys[1]) if last else x
        state = {f"first.{name}": value for name, value in one.items()} | {f"second.{n}": value for n, value in two.items()}
        return x @ params["out.weight"].T + params["out.bias"], state

    return call


class Net(nnx.Module):
    """flax's own norms, channels last."""

    def __init__(self, theirs: Theirs, momentum: float = 0.8, epsilon: float = 1e-5):
        rngs, flat = nnx.Rngs(0), arrays(theirs)
        self.first = nnx.BatchNorm(C, momentum=0.9, epsilon=1e-5, rngs=rngs)
        self.lift, self.out = nnx.Linear(C, V, rngs=rngs), nnx.Linear(V, V, rngs=rngs)
        self.second = nnx.BatchNorm(V, momentum=momentum, epsilon=epsilon, rngs=rngs)
        self.drop, self.last = nnx.Dropout(RATE, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)
        for name in ("first", "second"):
            held, norm = named(flat, name), getattr(self, name)
            norm.scale[...], norm.bias[...] = held["weight"], held["bias"]
            norm.mean[...], norm.var[...] = held["running_mean"], held["running_var"]
        for name in ("lift", "out"):
            held, linear = named(flat, name), getattr(self, name)
            linear.kernel[...], linear.bias[...] = held["weight"].T, held["bias"]

    def __call__(self, x):
        x = self.lift(self.first(x.transpose(CHANNELS_LAST)).mean((1, 2)))
        return self.out(self.last(self.second(self.drop(jnp.tanh(x)))))


class LinenNet(linen.Module):
    momentum: float = 0.8
    train: bool = True

    @linen.compact
    def __call__(self, x):
        norms = {"use_running_average": not self.train, "epsilon": 1e-5}
        x = linen.BatchNorm(momentum=0.9, **norms, name="first")(x.transpose(CHANNELS_LAST)).mean((1, 2))
        x = linen.Dropout(RATE, deterministic=not self.train)(jnp.tanh(linen.Dense(V, name="lift")(x)))
        x = linen.BatchNorm(momentum=self.momentum, **norms, name="second")(x)
        return linen.Dense(V, name="out")(linen.Dropout(0.1, deterministic=not self.train)(x))


def variables(theirs: Theirs) -> dict[str, Any]:
    flat = arrays(theirs)
    norms = {name: named(flat, name) for name in ("first", "second")}
    params = {name: {"scale": each["weight"], "bias": each["bias"]} for name, each in norms.items()}
    params |= {name: {"kernel": flat[f"{name}.weight"].T, "bias": flat[f"{name}.bias"]} for name in ("lift", "out")}
    stats = {name: {"mean": each["running_mean"], "var": each["running_var"]} for name, each in norms.items()}
    return {"params": params, "batch_stats": stats}


def linen_call(**options: Any) -> Callable[..., Any]:
    rngs = {"dropout": jax.random.key(0)}
    return lambda held, x: LinenNet(**options).apply(held, x, mutable=["batch_stats"], rngs=rngs)


def report_of(theirs: Any, model: Any, call: Any = None, **options: Any) -> Report:
    given = {"tier": "A", "mode": "train", **({"call_jax": call} if call else {}), **options}
    return compare(theirs, model, (X,), **given)


def causes(report: Report) -> dict[str, str]:
    return {module.name: module.cause for module in report.diverging}


def test_a_right_port_is_equal_with_all_that_is_dropped(theirs):
    report = report_of(theirs, arrays(theirs), plain())
    assert report.status == "equal", str(report)
    (says,) = [stage.says for stage in report.stages if stage.name == "dropout"]
    assert says == "2 draws at the same places, with torch's numbers on both sides"
    (says,) = [stage.says for stage in report.stages if stage.name == "running statistics"]
    assert says.startswith("4 buffers, relL2 ")


def test_statistics_that_are_not_given_are_told(theirs):
    report = report_of(theirs, arrays(theirs), lambda params, x: plain()(params, x)[0], checks=("forward",))
    assert report.status == "equal", str(report)
    assert report.stages[-1].status == "n/a"
    assert "let it return (output, updated), as apply(variables, x, mutable=['batch_stats']) does" in report.stages[-1].says
    assert "first.running_mean after the call" in report.not_covered


FAST = {"checks": ("weights", "forward", "local")}
STATISTICS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "flax's momentum": (
        {"first": {"momentum": 0.9}},
        dict.fromkeys(("first.running_mean", "first.running_var"), "torch momentum 0.1; jax momentum 0.9: flax's is 1 minus"),
    ),
    "another momentum": (
        {"second": {"momentum": 0.01}},
        dict.fromkeys(("second.running_mean", "second.running_var"), "torch momentum 0.2; jax momentum 0.01 (residual"),
    ),
    "biased": ({"second": {"ddof": 0}}, {"second.running_var": "torch variance unbiased; jax variance biased (residual"}),
    "not updated": (
        {"first": {"times": 0}},
        dict.fromkeys(
            ("first.running_mean", "first.running_var"),
            "torch updates the running statistic by momentum 0.1; jax leaves it as it was",
        ),
    ),
    "updated twice": (
        {"first": {"times": 2}},
        dict.fromkeys(("first.running_mean", "first.running_var"), "torch momentum 0.1; jax momentum 0.19: it updates twice"),
    ),
}


@pytest.mark.parametrize("case", STATISTICS)
def test_running_statistics_are_compared(theirs, case):
    change, said = STATISTICS[case]
    report = report_of(theirs, arrays(theirs), plain(**change), **FAST)
    assert report.status == "different"
    found = causes(report)
    assert found.keys() == said.keys(), str(report)
    assert all(found[name].startswith(says) for name, says in said.items()), found


OUTPUTS = {
    "epsilon": ({"eps": 1e-3}, "torch epsilon 1e-05; jax epsilon 0.001 (residual"),
    "running statistics": (
        {"inference": True},
        "torch normalises by the batch's own statistics (training); jax normalises by the running statistics (inference)",
    ),
}


@pytest.mark.parametrize("case", OUTPUTS)
def test_the_norms_own_output_is_explained(theirs, case):
    change, said = OUTPUTS[case]
    ours: Any = Net(theirs)

    def first(held: Any, x: Any) -> Any:
        output, state = normed(held, x.transpose(0, 3, 1, 2), 0.1, **change)
        return output.transpose(CHANNELS_LAST), state

    class Own(nnx.Module):
        def __init__(self, norm):
            self.weight, self.bias = nnx.Param(norm.scale[...]), nnx.Param(norm.bias[...])
            self.running_mean, self.running_var = nnx.BatchStat(norm.mean[...]), nnx.BatchStat(norm.var[...])

        def __call__(self, x):
            output, state = first({name: getattr(self, name)[...] for name in ("weight", "bias", *STATE)}, x)
            for name, value in state.items():
                getattr(self, name)[...] = value
            return output

    ours.first = Own(ours.first)
    found = causes(report_of(theirs, ours, **FAST))
    assert found.pop("second.var").startswith("torch variance unbiased; jax variance biased")
    assert found.keys() == {"first"}, found
    assert found["first"].startswith(said), found


STATE = ("running_mean", "running_var")


def test_flaxs_own_norms_differ_in_the_running_variance_alone(theirs):
    for model, call in ((Net(theirs), None), (variables(theirs), linen_call())):
        report = report_of(theirs, model, call)
        found = causes(report)
        assert found.keys() == {"first.var", "second.var"}, str(report)
        assert all(cause.startswith("torch variance unbiased; jax variance biased") for cause in found.values()), found
        assert next(stage.name for stage in report.stages if stage.status == "different") == "forward"


def test_a_bug_beside_flaxs_own_norms_is_explained(theirs):
    found = causes(report_of(theirs, Net(theirs, epsilon=1e-3)))
    assert found.keys() == {"first.var", "second", "second.var"}, found
    assert "epsilon 0.001" in found["second"], found


def test_linens_momentum(theirs):
    found = causes(report_of(theirs, variables(theirs), linen_call(momentum=0.2), **FAST))
    assert found["second.mean"].startswith("torch momentum 0.2; jax momentum 0.8: flax's is 1 minus torch's"), found


def by_columns(x: Any, rate: float, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, (1, x.shape[1])), x / (1 - rate), 0)


def unscaled(x: Any, rate: float, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x, 0)


def by_rows_of_vmap(x: Any, rate: float, key: Any) -> Any:
    return jax.vmap(lambda row, key: dropped(row, rate, key))(x, jax.random.split(key, len(x)))


def what_is_dropped(x: Any, rate: float, key: Any) -> Any:
    return jnp.where(jax.random.bernoulli(key, rate, x.shape), 0, x / (1 - rate))


HERE = r" \(parity_tests/quality/test_training_mode.py:\d+\)"
DROPS = {
    "another rate": (
        {"rate": 0.25},
        f"^torch has dropout of 0.3 in drop{HERE}; jax dropout of 0.25 in the model itself",
    ),
    "what is kept for what is dropped": (
        {"rate": 1 - RATE},
        f"^torch has dropout of 0.3 in drop{HERE}; jax dropout of 0.7 in the model itself",
    ),
    "left out": ({"last": 0.0}, rf"^torch has dropout of 0.1 in the model itself{HERE} of \[5, 7\]; jax has none there$"),
    "another place": (
        {"moved": True},
        r"^torch has dropout of 0.3 in drop.*; jax drops what `self.second.*; jax has it at parity",
    ),
    "units together": ({"drop": by_columns}, r"jax drops whole axes of it together, \[1, 7\]"),
    "not scaled": ({"drop": unscaled}, "^torch has dropout of 0.3 in drop.*; jax does not divide by the part kept"),
}


@pytest.mark.parametrize("case", usually(DROPS, "another rate", "left out", "another place", "not scaled"))
def test_what_is_dropped_is_compared(theirs, case):
    change, said = DROPS[case]
    report = report_of(theirs, arrays(theirs), plain(**change), checks=("forward", "local"))
    found = causes(report)
    assert found.keys() == {"(call)"}, str(report)
    assert re.search(said, found["(call)"]), found
    stages = {stage.name: stage for stage in report.stages}
    assert stages["dropout"].status == ("equal" if case in ("another place", "not scaled") else "different")


@pytest.mark.parametrize("drop", [by_rows_of_vmap, what_is_dropped])
def test_what_draws_otherwise_is_equal(theirs, drop):
    assert report_of(theirs, arrays(theirs), plain(drop=drop), **FAST).status == "equal"


def test_code_that_draws_what_it_drops_is_blamed_for_its_own_bug_alone(theirs):
    """And not for a rate."""
    report = report_of(theirs, arrays(theirs), plain(drop=what_is_dropped, second={"eps": 1e-3}), checks=("forward", "local"))
    assert report.status == "different"
    assert "dropout of" not in str(report), str(report)


def test_a_dump_carries_the_draws(theirs, tmp_path):
    save(record_torch(theirs, (X,), tier="A", checks=FAST["checks"], mode="train"), tmp_path / "dump")
    for change, status in (({}, "equal"), ({"rate": 0.2, "second": {"ddof": 0}}, "different")):
        report = check(load(tmp_path / "dump"), arrays(theirs), call_jax=plain(**change), tier="A", checks=FAST["checks"])
        assert report.status == status, str(report)
        assert [stage.status for stage in report.stages[-2:]] == [status] * 2
    assert "jax dropout of 0.2 in the model itself" in report.verdict


def test_the_models_stay_as_they_were(theirs):
    before, mode, ours = arrays(theirs), theirs.training, Net(theirs)
    mean = np.asarray(ours.first.mean[...])
    report_of(theirs, ours, **FAST)
    assert theirs.training == mode
    assert all(np.array_equal(array, before[name]) for name, array in arrays(theirs).items())
    assert np.array_equal(ours.first.mean[...], mean)
