"""Whatever a port does, the comparison ends with a verdict, or with one line that says what to change and where."""

import dataclasses
import functools
import random
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from jax.experimental import io_callback

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.suspect_operations import generators

B, D, F, V = 3, 4, 6, 5
X = np.random.default_rng(0).standard_normal((B, D)).astype(np.float32)


@pytest.fixture(autouse=True)
def _strict() -> None:
    """Others' ports have JAX's usual promotion."""


class TorchNet(torch.nn.Module):
    def __init__(self, after=lambda x: x, hidden=lambda x: x):
        super().__init__()
        self.a, self.b = torch.nn.Linear(D, F), torch.nn.Linear(F, V)
        self.after, self.hidden = after, hidden

    def forward(self, x):
        return self.after(self.b(self.hidden(torch.tanh(self.a(x)))))


def net(**options: Any) -> TorchNet:
    return excite(TorchNet(**options), seed=1).eval()


PARAMS = {
    name: {"kernel": layer.weight.detach().numpy().T.copy(), "bias": layer.bias.detach().numpy().copy()}
    for name, layer in net().named_children()
}


def linear(layer, x):
    return x @ layer["kernel"] + layer["bias"]


def first(params, x):
    return linear(params["a"], x)


def port(params, x):
    return linear(params["b"], jnp.tanh(first(params, x)))


def around(inner: Callable[[Any], Any]) -> Callable[..., Any]:
    """The port with another function in the place of tanh."""
    return lambda params, x: linear(params["b"], inner(first(params, x)))


class Net(nnx.Module):
    """The port as a module; `hidden` is what else is done there."""

    def __init__(self, hidden=lambda net, x: x):
        self.a, self.b = (nnx.Linear(*sizes, rngs=nnx.Rngs(0)) for sizes in ((D, F), (F, V)))
        for name, layer in (("a", self.a), ("b", self.b)):
            layer.kernel.set_value(jnp.asarray(PARAMS[name]["kernel"]))
            layer.bias.set_value(jnp.asarray(PARAMS[name]["bias"]))
        self.hidden = hidden
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        self.seen, self.count, self.mean = nnx.data([]), nnx.Variable(jnp.zeros((), jnp.int32)), nnx.BatchStat(jnp.zeros(F))

    def __call__(self, x):
        return self.b(self.hidden(self, jnp.tanh(self.a(x))))


class Counting(linen.Module):
    """Linen's, with a state of its own."""

    rate: float = 0.0

    @linen.compact
    def __call__(self, x):
        self.variable("state", "n", lambda: jnp.zeros((), jnp.int32)).value += 1
        h = jnp.tanh(linen.Dense(F, name="a")(x))
        self.sow("intermediates", "h", h)
        return linen.Dense(V, name="b")(linen.Dropout(self.rate, deterministic=not self.rate)(h))


class Named(NamedTuple):
    logits: Any
    cache: Any = None


@dataclasses.dataclass
class Data:
    logits: Any
    cache: Any = None


def appended(net, x):
    net.seen.append(x)
    return x


def counted(net, x):
    net.count.set_value(net.count.get_value() + 1)
    net.mean.set_value(0.9 * net.mean.get_value() + 0.1 * x.mean(0))
    return x


def sown(net, x):
    net.sow(nnx.Intermediate, "h", x)
    return x


def printed(net, x):
    print(x.shape)
    jax.debug.print("{}", x.shape)
    jax.debug.callback(lambda array: None, x)
    return x


def in_cache(x):
    """One row after the other, at int32 places of a cache in float32."""

    def step(carry, row):
        place, cache = carry
        return (place + 1, jax.lax.dynamic_update_slice(cache, row[None], (place, 0))), None

    return jax.lax.scan(step, (jnp.int32(0), jnp.zeros((B, F), jnp.float32)), jnp.tanh(x))[0][1]


def called_back(x):
    return jax.pure_callback(np.tanh, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def kept() -> Callable[..., Any]:
    """Uses what an earlier call has computed."""
    store: dict[str, Any] = {}
    return lambda params, x: port(params, x) + 0 * store.setdefault("h", first(params, x)).sum()


def fails(params, x):
    raise KeyError("no such key")


STATE: dict[str, Any] = {"params": PARAMS, "state": {"n": jnp.zeros((), jnp.int32)}}
MUTABLE: dict[str, Any] = {"mutable": ["state", "intermediates"]}
tanh_once = jax.custom_vjp(jnp.tanh)
tanh_once.defvjp(lambda x: (jnp.tanh(x), jnp.tanh(x)), lambda y, g: (g * (1 - y * y),))

EQUAL: dict[str, Any] = {
    "a dict": lambda: (PARAMS, lambda p, x: {"logits": port(p, x), "cache": None}),
    "a named tuple": lambda: (PARAMS, lambda p, x: Named(port(p, x))),
    "a dataclass": lambda: (PARAMS, lambda p, x: Data(port(p, x))),
    "a tuple of one": lambda: (PARAMS, lambda p, x: (port(p, x), None, "text", True)),
    "prints": lambda: (Net(printed), None),
    "appends": lambda: (Net(appended), None),
    "counts": lambda: (Net(counted), None),
    "sows": lambda: (Net(sown), None),
    "dropout that is off": lambda: (Net(lambda net, x: net.dropout(x)), None),
    "linen with state": lambda: (STATE, lambda p, x: Counting().apply(p, x, **MUTABLE)[0]),
    "a cond": lambda: (PARAMS, around(lambda x: jax.lax.cond(x.sum() > 1e9, lambda x: x, jnp.tanh, x))),
    "a cache": lambda: (PARAMS, around(in_cache)),
    "a gradient of its own": lambda: (PARAMS, around(tanh_once)),
    "vmap": lambda: (PARAMS, lambda p, x: jax.vmap(lambda row: port(p, row))(x)),
    "nnx.vmap": lambda: (Net(), lambda net, x: nnx.vmap(lambda net, row: net(row), in_axes=(None, 0))(net, x)),
    "nnx.remat": lambda: (Net(), lambda net, x: nnx.remat(lambda net, x: net(x))(net, x)),
    "checkpoint": lambda: (PARAMS, jax.checkpoint(port)),
    "nnx.jit": lambda: (Net(), nnx.jit(lambda net, x: net(x))),
    "int32 counters": lambda: (PARAMS, lambda p, x: port(p, x) + 0 * jax.lax.fori_loop(0, 3, lambda i, c: c + i, jnp.int32(0))),
    "int32 that overflows": lambda: (PARAMS, lambda p, x: port(p, x) + 0 * jnp.asarray(2**40).astype(jnp.int32)),
    "a donated input": lambda: (PARAMS, jax.jit(port, donate_argnums=1)),
}
"""Ports that are right, whatever else they do."""

SAID: dict[str, Any] = {
    "None": (lambda: (PARAMS, lambda p, x: None), "forward: call_jax gave a NoneType, not an array"),
    "a number": (lambda: (PARAMS, lambda p, x: 3.0), "forward: call_jax gave a float, not an array"),
    "a batch dropped": (
        lambda: (PARAMS, lambda p, x: port(p, x).reshape(-1)),
        "give call_jax or call_torch that makes them one",
    ),
    "an error": (lambda: (PARAMS, fails), "forward: jax in float64: KeyError: 'no such key'"),
    "too large a number": (lambda: (PARAMS, lambda p, x: port(p, x) * jnp.int32(2**31)), "2147483648 out of bounds for int32"),
    "state that may not change": (lambda: (STATE, lambda p, x: Counting().apply(p, x)), 'Cannot update variable "n"'),
    "no key": (lambda: (STATE, lambda p, x: Counting(0.5).apply(p, x, **MUTABLE)[0]), 'needs PRNG for "dropout"'),
}
"""Ports that cannot be compared, and what is said."""

NO_GRADIENTS: dict[str, Any] = {
    "a callback": (called_back, "Pure callbacks do not support JVP"),
    "numpy": (lambda x: jnp.asarray(np.tanh(np.asarray(x))), "jax.grad cannot go through numpy"),
    "a number of the host": (lambda x: x if float(x.sum()) > 1e9 else jnp.tanh(x), "or leave out the checks of gradients"),
    "an effect": (
        lambda x: (io_callback(lambda array: None, None, x), jnp.tanh(x))[1],
        "IO callbacks do not support JVP",
    ),
}
"""What JAX cannot differentiate."""


def report_of(made: tuple[Any, Any], twin: Any = None, **options: Any) -> Report:
    model, call = made
    return compare(twin or net(), model, (X,), tier="A", **({"call_jax": call} if call else {}), **options)


def status_of(report: Report, name: str) -> str:
    return next(stage.status for stage in report.stages if stage.name == name)


@pytest.mark.filterwarnings("ignore:Using 'Module.sow:DeprecationWarning")
@pytest.mark.parametrize("case", EQUAL)
def test_a_right_port_is_equal(case):
    report = report_of(EQUAL[case]())
    assert report.status == "equal", str(report)


@pytest.mark.parametrize("case", SAID)
def test_one_line_says_what_and_where(case):
    make, said = SAID[case]
    report = report_of(make())
    assert report.status == "failed"
    assert said in report.verdict
    assert "parity_tests/quality/test_any_port.py:" in report.verdict
    assert "\n" not in report.verdict
    assert report.diverging == []


def test_an_array_of_an_earlier_call_is_told():
    verdict = report_of((PARAMS, kept())).verdict
    assert "an array that linear made (parity_tests/quality/test_any_port.py:" in verdict, verdict
    assert "; the model kept it from an earlier call: compute it in every call" in verdict


@pytest.mark.parametrize("case", NO_GRADIENTS)
def test_values_are_compared_where_gradients_cannot_be(case):
    inner, said = NO_GRADIENTS[case]
    report = report_of((PARAMS, around(inner)))
    assert status_of(report, "forward") == "equal", report.traceback
    assert status_of(report, "gradients") == "failed"
    assert said in report.verdict
    assert "parity_tests/quality/test_any_port.py:" in report.verdict
    assert report_of((PARAMS, around(inner)), checks=("forward", "local")).status == "equal"


def test_other_values_are_different_where_gradients_cannot_be_taken():
    report = report_of((PARAMS, around(lambda x: 1.5 * called_back(x))))
    assert report.verdict.startswith("DIFFERENT: (call): ")
    assert report.exit_code == 1
    (says,) = [stage.says for stage in report.stages if stage.name == "gradients"]
    assert "Pure callbacks do not support JVP" in says
    assert "parity_tests/quality/test_any_port.py:" in says
    assert says.endswith("; the values differ already")


@pytest.mark.parametrize("draws", [lambda x: x + torch.randn(x.shape), torch.nn.functional.dropout], ids=["noise", "dropout"])
def test_torch_that_draws_random_numbers_is_told(draws):
    report = report_of((PARAMS, port), net(hidden=draws))
    assert report.status == "failed"
    assert (
        "torch gives another output each time: it draws random numbers (at parity_tests/quality/test_any_port.py:"
        in report.verdict
    )


def test_torch_that_draws_outside_of_torch_is_told():
    report = report_of((PARAMS, port), net(hidden=lambda x: x * float(np.random.default_rng().random())), checks=("forward",))
    says = "torch gives another output each time: it draws random numbers with numpy or random; take them out"
    assert (report.status, report.verdict) == ("failed", f"COULD NOT COMPARE: forward: {says}")


def test_torch_that_draws_and_rounds_otherwise_is_equal():
    report = report_of((PARAMS, port), net(hidden=lambda x: x * (1 + 1e-15 * torch.rand(()))), checks=("forward",))
    assert report.status == "equal", str(report)


@pytest.mark.parametrize(
    "made",
    [
        (PARAMS, lambda p, x: port(p, x) + jax.random.normal(jax.random.key(0), (B, V))),
        (Net(lambda net, x: net.dropout(x, deterministic=False)), None),
        (STATE, lambda p, x: Counting(0.5).apply(p, x, rngs={"dropout": jax.random.key(0)}, **MUTABLE)[0]),
    ],
    ids=["noise", "nnx.Dropout", "linen.Dropout"],
)
def test_jax_that_draws_random_numbers_is_told(made):
    report = report_of(made)
    assert report.status == "different"
    (says,) = [stage.says for stage in report.stages if stage.name == "forward"]
    assert "jax draws random numbers (at parity_tests/quality/test_any_port.py:" in says


HELD = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("draw", "where"),
    [
        (lambda: np.random.normal(size=(B, V)), "parity_tests/quality/test_any_port.py:"),
        (lambda: np.random.default_rng().normal(size=(B, V)), "parity_tests/quality/test_any_port.py:"),
        (lambda: random.random(), "parity_tests/quality/test_any_port.py:"),
        (lambda: HELD.normal(size=(B, V)), "a numpy generator that the model holds"),
    ],
    ids=["numpy", "an unseeded generator", "random", "a held generator"],
)
def test_random_numbers_of_the_host_are_told(draw, where):
    report = report_of((PARAMS, lambda p, x: port(p, x) + draw()), checks=("forward",))
    assert report.status == "different"
    says = f"jax gives another output each time: it draws random numbers with numpy or random (at {where}"
    assert says in report.stages[0].says
    assert says in report.verdict


def test_random_numbers_by_another_key_are_told():
    def call_jax(params, x):
        key = jax.random.key(time.perf_counter_ns() % 2**31)
        return port(params, x) + jax.random.normal(key, (B, V))

    report = report_of((PARAMS, call_jax), checks=("forward",))
    says = (
        "jax gives another output each time: it draws random numbers by another key (at parity_tests/quality/test_any_port.py:"
    )
    assert says in report.verdict


@pytest.mark.parametrize("torch_ends", [True, False])
def test_code_that_ends_the_process_ends_the_comparison_alone(torch_ends):
    twin, call_jax = (net(hidden=sys.exit), port) if torch_ends else (net(), lambda params, x: sys.exit(3))
    report = report_of((PARAMS, call_jax), twin, checks=("forward",))
    assert report.exit_code == 2
    assert report.verdict.startswith("COULD NOT COMPARE: forward: the code of a model ends the process with sys.exit(")
    assert "; take that out (at parity_tests/quality/test_any_port.py:" in report.verdict


@pytest.mark.parametrize("is_pure", [True, False])
def test_a_callback_that_ends_the_process_is_told_in_one_line(is_pure, capfd):
    def call_jax(params, x):
        if is_pure:
            return port(params, x) + jax.pure_callback(sys.exit, jax.ShapeDtypeStruct((), x.dtype), 0)
        jax.debug.callback(sys.exit, 0)
        return port(params, x)

    verdict = report_of((PARAMS, call_jax), checks=("forward",)).verdict
    assert verdict.startswith("COULD NOT COMPARE: forward: jax in float64: JaxRuntimeError: a callback fails: SystemExit: ")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("changes", [True, False])
def test_code_that_counts_its_calls_is_told(changes):
    calls: list[int] = []

    def counting(params, x):
        calls.append(1)
        return port(params, x) * (1 + (len(calls) if changes else 3))

    report = report_of((PARAMS, counting), checks=("forward",))
    assert report.status == "different"
    says = "jax gives another output each time: it counts its calls, or reads a clock; take that out"
    assert (says in report.stages[0].says) == changes


class Holder:
    """Draws from a generator that its code names."""

    def draw(self):
        return HELD.normal()


def test_generators_are_found_where_a_model_holds_them():
    one = np.random.default_rng(1)
    inside = [one, {"a": [one]}, lambda: one, functools.partial(print, one), type("Model", (), {"rng": one})()]
    assert all(one in generators(each) for each in inside)
    assert all(HELD in generators(each) for each in (Holder(), Holder().draw, lambda: HELD))
    assert generators(np.tanh, PARAMS) == []


def test_numbers_of_a_seed_are_constants():
    report = report_of((PARAMS, lambda p, x: port(p, x) + np.random.default_rng(0).normal(size=(B, V))), checks=("forward",))
    assert "another output each time" not in report.stages[0].says


CLOSED = {
    "cond": EQUAL["a cond"],
    "while_loop": lambda: (PARAMS, around(lambda x: jnp.tanh(jax.lax.fori_loop(0, jnp.asarray(1), lambda i, c: c + i, x)))),
    "pure_callback": lambda: (PARAMS, around(called_back)),
    "custom_vjp": EQUAL["a gradient of its own"],
}


@pytest.mark.parametrize("name", CLOSED)
def test_what_is_not_looked_into_is_told(name):
    report = report_of(CLOSED[name](), checks=("forward",))
    (says,) = report.not_covered
    assert says.startswith(f"calls inside of {name} (parity_tests/quality/test_any_port.py:")
    assert report.status == "equal"


def test_torch_may_give_one_array_in_a_dict_too():
    assert report_of((PARAMS, port), net(after=lambda x: {"logits": x, "loss": None})).status == "equal"
