"""The JAX side may be a Linen module or a plain function; and what cannot be compared says so in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

from jaxformer.convert.rules import Family, Rule, to_jax
from jaxformer.parity.attribute.checks import CHECK_NAMES
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.trace.jax_hooks import tap

X = np.random.default_rng(0).standard_normal((3, 5, 6)).astype(np.float32)
LAYERS = {"first": "layers.0", "second": "layers.1", "norm": "norm"}
LEAVES = (Rule("kernel", "weight", "transposed"), Rule("scale", "weight"), Rule("bias", "bias"))
MINE = Family(
    "mine",
    stacks={},
    rules=tuple(Rule(f"{ours}.{r.jax}", f"{theirs}.{r.torch}", r.layout) for ours, theirs in LAYERS.items() for r in LEAVES),
)


class TorchNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 8), torch.nn.Linear(8, 6)])
        self.norm = torch.nn.LayerNorm(6)
        self.drop = torch.nn.Dropout(0.1)

    def forward(self, x):
        return self.norm(self.drop(self.layers[1](torch.tanh(self.layers[0](x)))))


class LinenNet(linen.Module):
    epsilon: float = 1e-5

    @linen.compact
    def __call__(self, x):
        x = linen.Dense(6, name="second")(jnp.tanh(linen.Dense(8, name="first")(x)))
        return linen.LayerNorm(self.epsilon, name="norm", use_fast_variance=False)(x)


def plain(params, x, epsilon=1e-5):
    """The same as a function."""

    def dense(name, x):
        return tap(name, x @ params[name]["kernel"] + params[name]["bias"])

    x = dense("second", jnp.tanh(dense("first", x)))
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + epsilon)
    return tap("norm", x * params["norm"]["scale"] + params["norm"]["bias"])


def linen_call(epsilon):
    return lambda params, x: LinenNet(epsilon).apply({"params": params}, x)


KINDS = {"linen": linen_call, "function": lambda epsilon: lambda params, x: plain(params, x, epsilon)}


@pytest.fixture(scope="module")
def sides():
    """A torch model, and the parameters of both ports of it."""
    model = TorchNet().eval()
    shapes = jax.eval_shape(lambda: LinenNet().init(jax.random.key(0), X)["params"])
    return model, to_jax(dict(model.named_parameters()), shapes, MINE)


@pytest.fixture(autouse=True)
def _flax_promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.parametrize("kind", KINDS)
def test_equal(sides, kind):
    model, params = sides
    report = compare(model, params, (X,), rules=MINE, call_jax=KINDS[kind](1e-5))
    assert report.status == "equal", str(report)
    assert {"first", "second", "norm"} <= {module.jax for module in report.modules}


@pytest.mark.parametrize("kind", KINDS)
def test_the_diverging_one_is_named(sides, kind):
    model, params = sides
    report = compare(model, params, (X,), rules=MINE, call_jax=KINDS[kind](1e-6), tier="A")
    assert [module.jax for module in report.diverging] == ["norm"]
    assert report.verdict.startswith("DIFFERENT: norm: torch epsilon 1e-05; jax epsilon 1e-06 (residual ")


def test_rules_for_a_part_of_the_weights(sides):
    model, params = sides
    some = Family("some", {}, tuple(rule for rule in MINE.rules if "norm" not in rule.jax))
    report = compare(model, params, (X,), rules=some, call_jax=KINDS["function"](1e-5), checks=("weights", "forward"), tier="A")
    assert report.status == "equal", str(report)
    assert report.stages[0].says.endswith("bitwise equal; 2 JAX tensors without a rule were matched by values")
    assert "norm" in {module.jax for module in report.modules}


def test_what_is_done_around_the_model_is_the_callers(sides):
    model, params = sides
    report = compare(model, params, (X,), rules=MINE, call_jax=lambda params, x: linen_call(1e-5)(params, x) * 2, tier="A")
    assert [module.jax for module in report.diverging] == ["(call)"]
    assert {stage.name: stage.says for stage in report.stages}["local"] == "(call) diverges, and 0 of 4 modules"
    assert report.verdict.startswith("DIFFERENT: (call): torch takes the model's output as it is; jax multiplies it by 2")


@pytest.mark.parametrize(
    ("factor", "stages"),
    [
        (1, [("n/a", "no module was compared by itself; the other checks judge the call"), ("equal", "max/rms 0.0e+00")]),
        (2, [("different", "(call) diverges"), ("different", "(call) diverges")]),
    ],
)
def test_where_there_is_no_module_none_is_counted(factor, stages):
    theirs = torch.nn.Linear(6, 6)
    params = {"kernel": theirs.weight.detach().numpy().T.copy(), "bias": theirs.bias.detach().numpy()}

    def call(params, x):
        return (x @ params["kernel"] + params["bias"]) * factor

    report = compare(theirs, params, (X,), call_jax=call, checks=("local", "activation gradients"), tier="A")
    assert [(stage.status, stage.says.split(" (tol")[0]) for stage in report.stages] == stages
    assert report.exit_code == factor - 1
    assert "local" not in report.verdict


def test_a_cast_is_named(sides):
    model, params = sides

    def call(params, x):
        return jnp.asarray(linen_call(1e-5)(params, x), jnp.bfloat16)

    report = compare(model, params, (X,), rules=MINE, call_jax=call, tier="A")
    assert report.verdict == "DIFFERENT: (call): jax gives bfloat16 where torch gives float64: a cast in jax's code"


class Refuses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.norm = TorchNet().layers, TorchNet().norm

    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("kernel not implemented for Double\nand more")
        return x


def fails(params, x):
    raise ValueError("no such thing\nat all")


REFUSED = {
    "training": (
        lambda: TorchNet().train(),
        {},
        "the torch model is in training mode and drop drops units (p = 0.1); call .eval() on it, or compare with mode='train'",
    ),
    "no array": (
        TorchNet,
        {"call_torch": lambda model, x: {"logits": model(x) is None, "loss": None}},
        "call_torch gave a dict of logits, loss, not an array; give call_torch=lambda model, *inputs: ... that picks one",
    ),
    "jax gives no array": (
        TorchNet,
        {"call_jax": lambda params, x: (x.shape, "text")},
        "call_jax gave a tuple, not an array; give call_jax=lambda model, *inputs: ... that picks one",
    ),
    "no float64": (Refuses, {}, "torch in float64: RuntimeError: kernel not implemented for Double"),
    "fails in jax": (TorchNet, {"call_jax": fails}, "jax in float64: ValueError: no such thing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_one_line_and_how_far_it_came(sides, case):
    make, options, said = REFUSED[case]
    model = make() if case == "training" else make().eval()
    report = compare(model, sides[1], (X,), rules=MINE, **{"call_jax": linen_call(1e-5), "tier": "A"} | options)
    assert report.exit_code == 2
    assert [stage.name for stage in report.stages] == ["weights", "forward"]
    assert report.stages[0].status == "different"
    verdict, _, line = report.verdict.partition(" (at ")
    assert verdict == f"COULD NOT COMPARE: forward: {said}"
    assert line.startswith("parity_tests/fast/test_comparison_kinds.py:") == (case != "training")


def test_generation_that_fails_says_so(sides):
    def fails(model):
        raise RuntimeError("no tokens")

    call = linen_call(1e-5)
    report = compare(
        sides[0], sides[1], (X,), rules=MINE, call_jax=call, checks=("weights",), tier="A", generate=(fails, fails)
    )
    assert report.verdict.startswith("COULD NOT COMPARE: generate: RuntimeError: no tokens (at parity_tests/")


def test_the_torch_model_is_left_as_it_was(sides):
    model = TorchNet()
    model.drop.p = 0.0
    model.layers.eval()
    before = {name: tensor.clone() for name, tensor in model.named_parameters()}
    compare(model, sides[1], (X,), rules=MINE, call_jax=linen_call(1e-5), tier="A")
    assert model.training
    assert not model.layers.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.named_parameters())
    assert all(tensor.dtype == torch.float32 and tensor.grad is None for tensor in model.parameters())
    assert "forward" not in vars(model.norm)


class Drops(nnx.Module):
    """A module with keys and counters among its leaves, which drops units until it is told not to."""

    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 6, rngs=rngs)
        self.norm = nnx.LayerNorm(6, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.drop(self.second(jnp.tanh(self.first(x)))))


def test_random_state_in_a_module_is_no_weight(sides):
    report = compare(sides[0], Drops(nnx.Rngs(0)), (X,), rules=MINE, checks=CHECK_NAMES, tier="C")
    assert [stage.status for stage in report.stages] == ["different"] + ["equal"] * 7, str(report)


class TorchBiased(torch.nn.Module):
    """Scores of positions apart, from a table that attention owns, as T5's."""

    def __init__(self):
        super().__init__()
        self.values, self.table = torch.nn.Linear(6, 6), torch.nn.Embedding(9, 4)

    def forward(self, x):
        apart = torch.arange(5)[:, None] - torch.arange(5) + 4
        return self.table(apart).mean(-1).softmax(-1) @ self.values(x)


class TorchOuter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = TorchBiased(), torch.nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(self.inner(x))


class Biased(nnx.Module):
    """The same; whoever calls it asks it for the scores first."""

    def __init__(self, rngs):
        self.values, self.table = nnx.Linear(6, 6, rngs=rngs), nnx.Embed(9, 4, rngs=rngs)

    def scores(self):
        return self.table(jnp.arange(5)[:, None] - jnp.arange(5) + 4).mean(-1)

    def __call__(self, x, scores):
        return jax.nn.softmax(scores)[None] @ self.values(x)


class Outer(nnx.Module):
    def __init__(self, epsilon):
        rngs = nnx.Rngs(0)
        self.inner, self.norm = Biased(rngs), nnx.LayerNorm(6, epsilon=epsilon, use_fast_variance=False, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.inner(x, self.inner.scores()))


@pytest.mark.parametrize("epsilon", [1e-5, 1e-6])
def test_a_method_that_helps_is_no_call_of_the_module(epsilon):
    rules = Family("outer", {}, (*LEAVES, Rule("embedding", "weight")))
    report = compare(excite(TorchOuter(), 1), jax.eval_shape(lambda: Outer(epsilon)), (X,), rules=rules, tier="A")
    assert [module.jax for module in report.diverging] == ([] if epsilon == 1e-5 else ["norm"]), str(report)
    assert "inner (call 1)" in [module.jax for module in report.modules]
    assert report.status == ("equal" if epsilon == 1e-5 else "different")


def test_a_function_that_was_mended_since_is_run_anew(sides):
    """JAX would find the trace of the call that it knows."""
    (theirs, params), factor = sides, [2.0]

    def call(params, x):
        return plain(params, x) * factor[0]

    verdicts = []
    for factor[0] in (2.0, 1.0):
        verdicts.append(compare(theirs, params, (X,), rules=MINE, call_jax=call).status)
    assert verdicts == ["different", "equal"]
