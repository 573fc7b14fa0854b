"""A parameter that one side alone has is compared with zero, one or the identity, and told; the rest runs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.attribute.checks import CHECK_NAMES
from jaxformer.parity.compare import compare
from jaxformer.parity.pairing.placement import OneSided
from jaxformer.parity.probe import excite
from jaxformer.parity.report.report import Report
from jaxformer.parity.training.trainers import TrainingSpec
from parity_tests.support.helpers import noise


@pytest.fixture(autouse=True)
def _flax_promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


D, H, F = 6, 7, 4
X, Y = noise(3, 5, D), noise(3, 5, F, seed=1)
RULES = Family("mine", {}, (Rule("kernel", "weight", "transposed"), Rule("bias", "bias"), Rule("scale1", "scale1")))


class Theirs(torch.nn.Module):
    def __init__(self, *, key_bias: bool = True, scaled: bool = True):
        super().__init__()
        self.query, self.key = torch.nn.Linear(D, D), torch.nn.Linear(D, D, bias=key_bias)
        self.value, self.out = torch.nn.Linear(D, H), torch.nn.Linear(H, F)
        self.scale1 = torch.nn.Parameter(torch.ones(H)) if scaled else None

    def forward(self, x):
        found = torch.softmax(self.query(x) @ self.key(x).mT, -1) @ self.value(x)
        return self.out(found if self.scale1 is None else found * self.scale1)


class Ours(nnx.Module):
    """The same with torch's weights, and neutral ones where torch has none."""

    def __init__(self, theirs: Theirs, *, key_bias: bool = True, scaled: bool = True):
        rngs = nnx.Rngs(0)
        self.query, self.key = nnx.Linear(D, D, rngs=rngs), nnx.Linear(D, D, use_bias=key_bias, rngs=rngs)
        self.value, self.out = nnx.Linear(D, H, rngs=rngs), nnx.Linear(H, F, rngs=rngs)
        self.scale1 = nnx.Param(jnp.ones(H)) if scaled else None
        for name in ("query", "key", "value", "out"):
            mine, its = getattr(self, name), getattr(theirs, name)
            mine.kernel[...] = jnp.asarray(its.weight.T.detach().numpy())
            if mine.bias is not None and its.bias is not None:
                mine.bias[...] = jnp.asarray(its.bias.detach().numpy())
        if self.scale1 is not None and theirs.scale1 is not None:
            self.scale1[...] = jnp.asarray(theirs.scale1.detach().numpy())

    def __call__(self, x):
        found = jax.nn.softmax(self.query(x) @ self.key(x).swapaxes(-1, -2), -1) @ self.value(x)
        return self.out(found if self.scale1 is None else found * self.scale1[...])


def compared(theirs: torch.nn.Module, ours: Any, **options: Any) -> Report:
    """In tier A."""
    return compare(theirs, ours, (X,), **{"tier": "A", "checks": ("weights", "forward", "local", "gradients")} | options)


@pytest.fixture(scope="module")
def full() -> Theirs:
    return excite(Theirs().eval(), seed=1)


NO_KEY_BIAS = "jax leaves out key.bias: it is not 0 (rms 1.8e-01 off)"
NO_SCALE = "jax leaves out scale1: it is not 1 (rms 2.2e-01 off)"


@pytest.mark.parametrize("rules", [None, RULES])
@pytest.mark.parametrize(
    ("has", "module", "said"), [({"key_bias": False}, "key", NO_KEY_BIAS), ({"scaled": False}, "the model", NO_SCALE)]
)
def test_what_jax_leaves_out_is_a_verdict_and_its_module_is_named(full, rules, has, module, said):
    report = compared(full, Ours(full, **has), rules=rules)
    assert report.stages[0].status == "different"
    assert report.stages[0].says == f"8 of 9 tensors used once, bitwise equal; {said}"
    assert report.verdict.startswith(f"DIFFERENT: {module}: {said}; torch ")
    assert [row.jax or "the model" for row in report.diverging] == [module], str(report)


def test_shapes_alone_leave_it_out_too(full):
    shapes = nnx.eval_shape(lambda: Ours(full, key_bias=False))
    report = compared(full, shapes, rules=RULES, checks=("weights", "forward"))
    assert report.stages[0].says == f"8 tensors, each used once; the JAX model had none of its own; {NO_KEY_BIAS}"
    assert report.status == "different"


def test_one_that_nothing_depends_on_and_that_is_neutral_is_equal():
    """Whisper's keys have no bias in torch, and one of zeros in JAX; softmax ignores it."""
    theirs = excite(Theirs(key_bias=False).eval(), seed=1)
    report = compared(theirs, Ours(theirs))
    assert report.status == "equal", str(report)
    assert report.stages[0].says.endswith("; jax has key.bias, torch has not: it is 0, so it changes nothing")
    ours = Ours(theirs)
    assert ours.key.bias is not None
    ours.key.bias[...] = jnp.full(D, 0.5)
    report = compared(theirs, ours)
    said = "DIFFERENT: key: jax has key.bias, torch has not: it is not 0 (rms 5.0e-01 off); jax adds 0.5 to torch's array"
    assert report.verdict.startswith(said)


NEUTRAL = {
    "torch": (lambda: Theirs(), {"scaled": False}, "torch trains scale1, which jax leaves out"),
    "jax": (lambda: Theirs(scaled=False), {}, "jax trains scale1, which torch has not"),
}


def neutral(side: str) -> tuple[Theirs, Ours, str]:
    """A gain of ones that one side has."""
    make, has, said = NEUTRAL[side]
    theirs = excite(make().eval(), seed=1)
    if theirs.scale1 is not None:
        theirs.scale1.data.fill_(1)
    return theirs, Ours(theirs, **has), said


@pytest.mark.parametrize("side", NEUTRAL)
def test_a_neutral_one_that_is_trained_is_different_where_gradients_are_looked_at(side):
    theirs, ours, said = neutral(side)
    report = compared(theirs, ours)
    assert [stage.status for stage in report.stages] == ["equal"] * 3 + ["different"], str(report)
    assert "it is 1, so it changes nothing" in report.stages[0].says
    assert report.stages[3].says.startswith(f"{said}; ")
    assert report.verdict == f"DIFFERENT: the model: {said}"
    assert compared(theirs, ours, checks=("weights", "forward", "local")).status == "equal"


def mean_square(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


def learning(optimizer: Any) -> TrainingSpec:
    return TrainingSpec(
        batches=[(X, Y)] * 2,
        torch_loss=mean_square,
        jax_loss=mean_square,
        torch_optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-2),
        jax_optimizer=optimizer,
    )


@pytest.mark.parametrize("side", NEUTRAL)
def test_training_says_it(side):
    theirs, ours, said = neutral(side)
    report = compared(theirs, ours, checks=("weights",), training=learning(optax.adam(1e-2)))
    assert [stage.name for stage in report.stages if stage.status != "equal"] == ["train"], str(report)
    assert report.stages[-1].says.startswith(f"{said}; loss of step 1: ")


def test_training_ignores_what_adam_makes_of_rounding_noise():
    theirs = excite(Theirs(key_bias=False).eval(), seed=1)
    report = compared(theirs, Ours(theirs), checks=("weights",), training=learning(optax.adam(1e-2)))
    assert report.status == "equal", str(report)


def test_layers_are_told_together():
    theirs = torch.nn.Sequential(*(torch.nn.Linear(D, D) for _ in range(4)))
    held = {name: jnp.asarray(tensor.detach().numpy().T) for name, tensor in theirs.named_parameters()}
    layers = {str(i): {"kernel": held[f"{i}.weight"]} for i in range(4)}
    layers["0"]["bias"] = held["0.bias"]

    def call(params: Any, x: Any) -> Any:
        for layer in params.values():
            x = x @ layer["kernel"] + layer.get("bias", 0.0)
        return x

    says = compared(theirs, layers, call_jax=call, checks=("weights", "forward")).stages[0].says
    assert says.startswith("5 of 8 tensors used once, bitwise equal; jax leaves out 1-3.bias: it is not 0 (rms ")


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("norm.weight", np.ones(3), "1"),
        ("norm.bias", np.ones(3), "0"),
        ("layer_scale1.lambda1", np.full(3, 0.9), "1"),
        ("g", np.zeros(3), "0"),
        ("proj.weight", np.eye(3), "the identity"),
        ("up.weight", np.zeros((3, 2)), "0"),
    ],
)
def test_what_would_change_nothing(name, value, wanted):
    found = OneSided("torch", name, value)
    assert found.neutral == wanted
    assert found.is_neutral == (name not in ("norm.bias", "layer_scale1.lambda1"))


class Pooled(torch.nn.Module):
    """As BigBird: the pooler is not on the way to what is compared, unless it is `used`."""

    def __init__(self, *, used: bool):
        super().__init__()
        self.inner, self.pooler, self.used = torch.nn.Linear(D, F), torch.nn.Linear(F, F), used

    def forward(self, x):
        x = self.inner(x)
        pooled = self.pooler(x[:, 0])
        return x + pooled[:, None].tanh() if self.used else x


def tensors(model: torch.nn.Module) -> dict[str, Any]:
    """A plain function's parameters."""
    return {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in model.named_parameters()}


def pooled(params: Any, x: Any) -> Any:
    """With a token for masked places that is as wide as what it stands for."""
    x = x @ params["inner.weight"].T + params["inner.bias"]
    if "pooler.weight" in params:
        x += jnp.tanh(x[:, :1] @ params["pooler.weight"].T + params["pooler.bias"])
    return jnp.where(params.get("drawn", False), params.get("token", 0.0), x)


@pytest.mark.parametrize("checks", [CHECK_NAMES, ("weights", "forward")])  # with gradients, and without
@pytest.mark.parametrize("used", [False, True])
def test_what_nothing_depends_on_may_be_left_out(used, checks):
    theirs = excite(Pooled(used=used).eval(), seed=1)
    params = tensors(theirs.inner)
    params = {f"inner.{name}": array for name, array in params.items()}
    report = compared(theirs, params, call_jax=pooled, checks=checks)
    said = "jax leaves out pooler.weight, pooler.bias: nothing that is compared depends on it"
    assert (report.status == "equal", said in report.stages[0].says) == (not used, not used), str(report)


@pytest.mark.parametrize("used", [False, True])
def test_jax_may_have_what_it_does_not_use(used):
    """As Flax's Wav2Vec2 has what stands for masked places."""
    theirs = excite(torch.nn.Sequential(torch.nn.Linear(D, F)).eval(), seed=1)
    params = {f"inner.{name}": array for name, array in tensors(theirs[0]).items()}
    params |= {"token": jnp.full(F, 0.5), "drawn": jnp.arange(5)[:, None] < (2 if used else 0)}
    report = compared(theirs, params, call_jax=pooled)
    said = "jax has token, torch has not: nothing that is compared depends on it"
    assert (report.status == "equal", said in report.stages[0].says) == (not used, not used), str(report)
