"""What is no model, no rules or no inputs is refused in one line; and what cannot be judged is never called equal."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx

from jaxformer.convert.registry import FAMILIES
from jaxformer.convert.rules import Family, Rule, to_jax
from jaxformer.errors import JaxformerError
from jaxformer.parity.attribute.checks import CHECK_NAMES
from jaxformer.parity.compare import compare

X = np.random.default_rng(0).standard_normal((3, 5, 6)).astype(np.float32)
RULES = Family("mine", {}, (Rule("kernel", "weight", "transposed"), Rule("bias", "bias")))


class Theirs(torch.nn.Module):
    def __init__(self, heads: int = 2):
        super().__init__()
        self.q, self.o = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.count += 1
        return self.o(torch.tanh(self.q(x)))


class Ours(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.q, self.o = nnx.Linear(6, 6, rngs=rngs), nnx.Linear(6, 4, rngs=rngs)

    def __call__(self, x):
        return self.o(jnp.tanh(self.q(x)))


def ported(theirs: Theirs) -> Ours:
    """With torch's weights."""
    return to_jax(dict(theirs.named_parameters()), Ours(), RULES)


def with_nan() -> Theirs:
    theirs = Theirs()
    theirs.o.weight.data[0] = torch.nan
    return theirs


def nothing_but_nan() -> Theirs:
    theirs = Theirs()
    theirs.o.bias.data[:] = torch.nan
    return theirs


def with_root(root: Any) -> Any:
    """A call whose gradient is NaN on the way back, and whose output is 0 more."""

    def call(model: Any, x: Any) -> Any:
        y = model(x)
        return y + root(y * 0)

    return call


BACKWARDS = {"call_torch": with_root(torch.sqrt), "call_jax": with_root(jnp.sqrt)}


def shapes(make: Any) -> Any:
    return jax.eval_shape(make)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no torch model": (
        {"torch_model": None},
        "the torch model is a NoneType; give a torch.nn.Module, or a JAX model to compare with",
    ),
    "half precision": (
        {"torch_model": Theirs().bfloat16()},
        "the torch model holds bfloat16, first q.weight; give it in float32: model.float()",
    ),
    "without values": (
        {"torch_model": Theirs().to("meta")},
        "the torch model holds meta tensors, which have no values, first q.weight; give it values: "
        "model.to_empty(device='cpu'), then load_state_dict",
    ),
    "half precision in JAX": (
        {"jax_model": {"q": jnp.ones((6, 6), jnp.bfloat16)}, "call_jax": lambda params, x: x},
        "the JAX model holds bfloat16, first q; give it in float32: it is compared in float64",
    ),
    "torch twice": (
        {"jax_model": Theirs()},
        "the JAX model is a torch module; give an NNX module, or parameters and call_jax(params, *inputs)",
    ),
    "torch's tensors": (
        {"jax_model": {"w": {"o.bias": Theirs().o.bias}}, "call_jax": lambda parameters, x: x},
        "the JAX model holds torch's tensors, first w.o.bias; give arrays: w.o.bias.detach().numpy()",
    ),
    "a Linen module": (
        {"jax_model": linen.Dense(4)},
        "the JAX model is a Linen module; give an NNX module, or parameters and call_jax(params, *inputs)",
    ),
    "parameters alone": ({"jax_model": {}}, "the JAX model is a tree of parameters; give call_jax(params, *inputs) too"),
    "shapes alone": (
        {"jax_model": shapes(Ours), "rules": None},
        "the JAX model has shapes alone, and no values to match; give rules",
    ),
    "unknown rules": (
        {"rules": "gtp2"},
        "rules = 'gtp2' is not known; did you mean 'gpt2'? docs/models.md lists all",
    ),
    "rules that are none": (
        {"rules": 3},
        f"rules is an int; give a Family, or one of {', '.join(FAMILIES)}",
    ),
    "an array for inputs": ({"inputs": X}, "inputs is an ndarray; give a tuple of arrays, (x,) for one"),
    "no array": ({"inputs": ("x",)}, "input 0 is a str; give arrays of real numbers with at least one axis"),
    "None": ({"inputs": (X, None)}, "input 1 is None; leave it out, and give it in call_torch and call_jax"),
    "names for inputs": (
        {"inputs": {"x": X}},
        "inputs is a dict; give a tuple of arrays, and their names in call_torch and call_jax",
    ),
    "names among inputs": (
        {"inputs": ({"x": X},)},
        "input 0 is a dict; give its arrays, and their names in call_torch and call_jax",
    ),
    "no JAX model": (
        {"jax_model": None},
        "the JAX model is a NoneType, which is not a tree of arrays; give an NNX module, or parameters and call_jax(params, "
        "*inputs)",
    ),
    "a number for the training": ({"training": 5}, "training = 5 is an int; give a TrainingSpec"),
    "a number for the generation": (
        {"generate": 5},
        "generate = 5 is an int; give two functions, (torch_generate, jax_generate)",
    ),
    "one function for the generation": (
        {"generate": (len,)},
        "generate holds 1 values; give two functions, (torch_generate, jax_generate)",
    ),
    "numbers for the generation": (
        {"generate": (5, 6)},
        "generate = 5 cannot be called; give two functions, (torch_generate, jax_generate)",
    ),
    "a number for JAX's call": (
        {"call_jax": 5},
        "call_jax = 5 cannot be called; give a function of the model and its inputs",
    ),
    "a number for torch's call": (
        {"call_torch": 5},
        "call_torch = 5 cannot be called; give a function of the model and its inputs",
    ),
    "an empty batch": ({"inputs": (X[:0],)}, "input 0 is empty: its shape is [0, 5, 6]; give it some rows"),
    "a check for checks": (
        {"checks": "forward"},
        f"checks is 'forward'; give a tuple of some of {', '.join(CHECK_NAMES)}",
    ),
    "nothing to compare": (
        {"checks": ("sensitivity",)},
        "checks = ('sensitivity',) compares nothing in tier A; add others, or leave checks out",
    ),
}


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    changes, said = REFUSED[case]
    given = {"torch_model": Theirs(), "jax_model": Ours(), "inputs": (X,), "rules": RULES, "tier": "A"} | changes
    with pytest.raises(JaxformerError) as refused:
        compare(given.pop("torch_model"), given.pop("jax_model"), given.pop("inputs"), **given)
    assert str(refused.value) == said


TWO_TENSORS = {
    "jax_model": {"kernel": jnp.zeros((6, 4)), "bias": jnp.zeros(4)},
    "rules": Family("mine", {}, (Rule("kernel", "0.weight", "transposed"), Rule("bias", "0.bias"))),
    "call_jax": lambda params, x: x @ params["kernel"] + params["bias"],
}
NOT_COMPARED = {
    "shapes, and only weights": (
        Theirs,
        {"jax_model": shapes(Ours), "checks": ("weights",)},
        "COULD NOT COMPARE: weights: the JAX model has shapes alone; give one with weights, or check more than weights",
    ),
    "NaN": (
        with_nan,
        {},
        "COULD NOT COMPARE: gradients: torch's own are NaN or infinite in 3 of 5 tensors, first input 0; give inputs and "
        "weights without, or leave the gradients out",
    ),
    "NaN on the way back": (
        Theirs,
        {**BACKWARDS, "checks": ("forward", "activation gradients")},
        "COULD NOT COMPARE: activation gradients: torch's own are NaN or infinite in 3 calls of modules, first q; give inputs "
        "and weights without, or leave the activation gradients out",
    ),
    "NaN alone, module by module": (
        nothing_but_nan,
        {"checks": ("local",)},
        "COULD NOT COMPARE: local: torch's output holds no finite number; give other inputs, or other weights",
    ),
    "NaN alone, in float32": (
        nothing_but_nan,
        {"checks": ("weights",), "tier": "B"},
        "COULD NOT COMPARE: float32: torch's output holds no finite number; give other inputs, or other weights",
    ),
    "scripted": (
        lambda: torch.jit.script(torch.nn.Sequential(torch.nn.Linear(6, 4))),
        TWO_TENSORS,
        "COULD NOT COMPARE: forward: the model itself is made by torch.jit, so nothing can be seen inside; give the nn.Module "
        "that it was made of",
    ),
    "a part of it is traced": (
        lambda: torch.nn.Sequential(torch.jit.trace(torch.nn.Linear(6, 4), torch.tensor(X))),
        TWO_TENSORS,
        "COULD NOT COMPARE: forward: 0 is made by torch.jit, so nothing can be seen inside; give the nn.Module that it was "
        "made of",
    ),
    "detached": (
        Theirs,
        {"call_torch": lambda model, x: model(x).detach()},
        "COULD NOT COMPARE: forward: no gradient comes from what call_torch gives: it is detached, or holds no floats; leave "
        "out the checks of gradients",
    ),
    "complex": (
        Theirs,
        {"call_torch": lambda model, x: torch.fft.fft(model(x))},
        "COULD NOT COMPARE: forward: the output of call_torch is complex, and gradients are taken of real numbers; leave out "
        "the checks of gradients, or give call_torch with torch.view_as_real and call_jax with the real and imaginary parts",
    ),
}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("case", NOT_COMPARED)
def test_not_compared(case):
    make, changes, said = NOT_COMPARED[case]
    given = {"jax_model": Ours(), "rules": RULES, "tier": "A"} | changes
    report = compare(make(), given.pop("jax_model"), (X,), **given)
    assert report.exit_code == 2, str(report)
    assert report.verdict == said


def test_equal_gradients_do_not_hide_other_values():
    options = {"rules": RULES, "call_jax": lambda model, x: model(x) + 7, "tier": "A"}
    report = compare(theirs := Theirs(), ported(theirs), (X,), checks=("gradients", "activation gradients"), **options)
    assert report.verdict.startswith("DIFFERENT: (call): ")


def test_outputs_of_other_shapes():
    for checks, word in ((CHECK_NAMES, "COULD NOT COMPARE"), (("weights", "forward"), "DIFFERENT")):
        options = {"rules": RULES, "call_jax": lambda model, x: model(x)[:, :2], "checks": checks, "tier": "A"}
        report = compare(theirs := Theirs(), ported(theirs), (X,), **options)
        assert report.stages[1].says == "the output is [3, 2, 4] in jax and [3, 5, 4] in torch"
        assert report.verdict.startswith(word)


class Changes(Theirs):
    """It sets its own attributes and weights as it runs; one of its buffers is a view of a single number."""

    def __init__(self):
        super().__init__()
        self.register_buffer("ones", torch.ones(1).expand(4))

    def forward(self, x):
        y = super().forward(x) * self.ones
        self.count, self.last = self.count + 1, y
        with torch.no_grad():
            self.o.bias.add_(1)
        return y


def test_a_torch_model_that_changes_as_it_runs_is_as_before():
    theirs = Changes().train()
    before, count = theirs.o.bias.clone(), theirs.count
    compare(theirs, Ours(), (X,), rules=RULES, checks=("weights", "forward"))
    assert theirs.training
    assert theirs.count is count
    assert int(count) == 0
    assert torch.equal(theirs.o.bias, before)
    assert not hasattr(theirs, "last")


def test_buffers_of_torch_are_as_before():
    theirs = Theirs()
    compare(theirs, Ours(), (X,), rules=RULES, checks=("weights", "forward"))
    assert int(theirs.count) == 0


class General(linen.Module):
    """Heads have an axis of their own."""

    factor: float = 1.0

    @linen.compact
    def __call__(self, x):
        q = linen.DenseGeneral((2, 3), name="q")(x)
        return linen.DenseGeneral(4, axis=(-2, -1), name="o")(jnp.tanh(q) * self.factor)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_split_and_merged_axes_are_the_same_array(factor):
    theirs = Theirs()
    q, o = ((layer.weight.detach().numpy().T, layer.bias.detach().numpy()) for layer in (theirs.q, theirs.o))
    params = {
        "q": {"kernel": jnp.asarray(q[0].reshape(6, 2, 3)), "bias": jnp.asarray(q[1].reshape(2, 3))},
        "o": {"kernel": jnp.asarray(o[0].reshape(2, 3, 4)), "bias": jnp.asarray(o[1])},
    }
    for tree, unpack in ((params, lambda tree: tree), ({"params": params}, lambda tree: tree["params"])):
        report = compare(
            theirs,
            tree,
            (X,),
            call_jax=lambda tree, x, unpack=unpack: General(factor).apply({"params": unpack(tree)}, x),
            tier="A",
        )
        assert [module.jax for module in report.diverging] == ([] if factor == 1 else [""]), str(report)
        assert {"q", "o"} <= {module.jax for module in report.modules}


@dataclass(frozen=True)
class Both:
    x: Any
    label: str


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q = torch.nn.Linear(6, 6)

    def forward(self, x):
        return Both(torch.tanh(self.q(x)), "hidden")


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.o = Inner(), torch.nn.Linear(6, 4)

    def forward(self, x):
        return self.o(self.inner(x).x)


class OurInner(nnx.Module):
    def __init__(self):
        self.q = nnx.Linear(6, 6, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return Both(jnp.tanh(self.q(x)) * 1.01, "hidden")


class OurOuter(nnx.Module):
    def __init__(self):
        self.inner, self.o = OurInner(), nnx.Linear(6, 4, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.o(replace(self.inner(x), label="read").x)


def test_what_dataclasses_carry_is_seen():
    report = compare(Outer(), OurOuter(), (X,), rules=RULES, tier="A")
    assert [module.jax for module in report.diverging] == ["inner"], str(report)
