"""What torch freezes is a constant: its values are compared, and a JAX model that trains it is different."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.recorded import check
from jaxformer.parity.recording import record_torch
from jaxformer.parity.report.report import Report
from jaxformer.parity.trace.archive import load, save
from jaxformer.parity.training.trainers import TrainingSpec
from parity_tests.support.helpers import noise


@pytest.fixture(autouse=True)
def _flax_promotes():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


T, D, F = 5, 6, 7
X, Y = noise(3, T, D), noise(3, T, F, seed=1)


class Theirs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.mid, self.out = torch.nn.Embedding(T, D), torch.nn.Linear(D, D), torch.nn.Linear(D, F)

    def forward(self, x):
        return self.out(torch.tanh(self.mid(x + self.places.weight)))


class Ours(nnx.Module):
    """It trains all of it."""

    def __init__(self, theirs: Theirs):
        rngs = nnx.Rngs(0)
        self.places = nnx.Param(array(theirs.places.weight))
        self.mid, self.out = nnx.Linear(D, D, rngs=rngs), nnx.Linear(D, F, rngs=rngs)
        for name in ("mid", "out"):
            mine, its = getattr(self, name), getattr(theirs, name)
            mine.kernel[...], mine.bias[...] = array(its.weight.T), array(its.bias)

    def __call__(self, x):
        return self.out(jnp.tanh(self.mid(x + self.table())))

    def table(self) -> jax.Array:
        return self.places[...]


class Stops(Ours):
    def table(self):
        return jax.lax.stop_gradient(self.places[...])


class Holds(Ours):
    def __init__(self, theirs):
        super().__init__(theirs)
        self.places = nnx.Variable(array(theirs.places.weight))


class Computes(Ours):
    """A table that is no parameter, and not quite torch's, in float32."""

    def __init__(self, theirs):
        super().__init__(theirs)
        del self.places

    def table(self):
        return waves(jnp)


def waves(xp: Any) -> Any:
    """Sinusoids, as Marian holds them in a frozen parameter."""
    return xp.sin(xp.arange(T)[:, None] / 7.0 ** (xp.arange(D) / D))


def array(tensor: torch.Tensor) -> jax.Array:
    return jnp.asarray(tensor.detach().numpy())


@pytest.fixture(scope="module")
def frozen() -> Theirs:
    theirs = excite(Theirs().eval(), seed=1)
    theirs.places.weight.requires_grad_(False)
    return theirs


def compared(theirs: torch.nn.Module, ours: Any, **options: Any) -> Report:
    """In tier A."""
    return compare(theirs, ours, (X,), **{"tier": "A", "checks": ("weights", "forward", "gradients")} | options)


TRAINS = "torch freezes places.weight; jax trains it"


@pytest.mark.parametrize("kind", [Stops, Holds])
def test_what_neither_side_trains_is_equal(frozen, kind):
    report = compared(frozen, kind(frozen), tier="B")
    assert report.status == "equal", str(report)
    assert report.stages[2].says.startswith("5 tensors, 0 null")


def test_what_jax_trains_is_different(frozen):
    report = compared(frozen, Ours(frozen))
    assert [stage.status for stage in report.stages] == ["equal", "equal", "different"], str(report)
    assert report.stages[2].says == f"{TRAINS}; 5 others, equal"
    assert report.verdict == f"DIFFERENT: the model: {TRAINS}"


def test_its_values_are_compared(frozen):
    ours = Stops(frozen)
    ours.places[...] *= 1.5
    assert compared(frozen, ours).stages[0].says.startswith("1 of 5 tensors differ, first places.weight, in JAX places (relL2")


def test_a_model_of_which_all_is_frozen_was_frozen_to_infer(frozen):
    theirs = excite(Theirs().eval(), seed=1).requires_grad_(False)
    assert compared(theirs, Ours(theirs)).status == "equal"
    assert compared(theirs, Stops(theirs)).stages[2].status == "different"


def test_code_may_compute_it(frozen):
    theirs = excite(Theirs().eval(), seed=1)
    theirs.places.weight = torch.nn.Parameter(torch.from_numpy(waves(np).astype(np.float32)), requires_grad=False)
    report = compared(theirs, Computes(frozen))
    assert report.status == "equal", str(report)
    assert "torch's buffers that JAX does not hold: places.weight" in report.stages[0].says
    theirs.places.weight.requires_grad_(True)
    assert (
        compared(theirs, Computes(frozen)).stages[0].says.startswith("4 of 5 tensors used once, bitwise equal; jax leaves out")
    )


def test_a_table_that_jax_holds_may_be_rounded(frozen):
    ours = Holds(frozen)
    ours.places[...] *= 1 + 4e-7
    report = compared(frozen, ours)
    assert report.status == "equal", str(report)
    assert "places.weight differs by 3.5e-07 of its size at most" in report.stages[0].says
    ours.places[...] *= 1.5
    assert "places.weight differs from places (relL2 5.0e-01)" in compared(frozen, ours).stages[0].says


def test_some_layers_of_a_stack(frozen):
    theirs = torch.nn.Sequential(*(torch.nn.Linear(D, D) for _ in range(3)))
    theirs[0].requires_grad_(False)
    stack = {name: np.stack([getattr(layer, name).detach().numpy().T for layer in theirs]) for name in ("weight", "bias")}

    def call(params: Any, x: Any, still: int) -> Any:
        for layer in range(3):
            kernel, bias = (params[name][layer] for name in ("weight", "bias"))
            x = x @ (jax.lax.stop_gradient(kernel) if layer < still else kernel)
            x += jax.lax.stop_gradient(bias) if layer < still else bias
        return x

    for still, said in ((1, ""), (0, "torch freezes 0.bias; jax trains it; torch freezes 0.weight; jax trains it; 5 others")):
        report = compared(theirs, stack, call_jax=lambda params, x, still=still: call(params, x, still))
        assert (report.status == "equal") == (not said), str(report)
        assert report.stages[2].says.startswith(said)


def test_a_dump_carries_it(frozen, tmp_path):
    save(record_torch(frozen, (X,), tier="A", checks=("gradients",)), tmp_path / "said")
    for kind, says in ((Stops, "5 tensors, 0 null"), (Ours, TRAINS)):
        report = check(load(tmp_path / "said"), kind(frozen), checks=("gradients",), tier="A")
        assert report.stages[0].says.startswith(says), str(report)


def mean_square(model: Any, x: Any, y: Any) -> Any:
    return ((model(x) - y) ** 2).mean()


def still(params: Any) -> Any:
    """Which parameters move."""
    return jax.tree_util.tree_map_with_path(lambda path, _: "stays" if "places" in str(path) else "goes", params)


ADAMW = optax.adamw(1e-2, weight_decay=0.1)
COURSES: dict[str, tuple[type[Ours], Any, str]] = {
    "a constant": (Holds, ADAMW, ""),
    "no step for it": (Ours, optax.multi_transform({"goes": ADAMW, "stays": optax.set_to_zero()}, still), ""),
    "trained": (Ours, ADAMW, TRAINS),
    "decayed": (Stops, ADAMW, "torch freezes places.weight; jax moves it, though its gradient is 0: leave it out of the"),
}


@pytest.mark.parametrize("case", COURSES)
def test_training_leaves_it_as_it_is(frozen, case):
    kind, optimizer, said = COURSES[case]
    learning = TrainingSpec(
        batches=[(X, Y)] * 2,
        torch_loss=mean_square,
        jax_loss=mean_square,
        torch_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1),
        jax_optimizer=optimizer,
    )
    report = compared(frozen, kind(frozen), training=learning, checks=("gradients",))
    assert [stage.name for stage in report.stages if stage.status != "equal"] == (["train"] if said else []), str(report)
    assert not said or report.stages[-1].says.startswith(said)


def test_a_parameter_that_jax_rounds_is_told(frozen):
    ours = Stops(frozen)
    ours.places[...] *= 1 + 4e-7
    report = compared(frozen, ours)
    assert report.status == "equal", str(report)
    assert "frozen places.weight differs by" in report.stages[0].says
