"""What models keep besides their parameters while they train."""

from dataclasses import replace
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx

from jaxformer.convert.rules import Family, Rule
from jaxformer.parity.compare import compare
from jaxformer.parity.probe import excite
from jaxformer.parity.training.compare import compare_training
from jaxformer.parity.training.trainers import TrainingSpec
from parity_tests.support.helpers import noise

pytestmark = pytest.mark.foreign

B, D, WIDE = 6, 8, 9
X = noise(B, D, seed=5)
LINE = Family("line", {}, (Rule("kernel", "weight", "transposed"), Rule("bias", "bias")))


def normalised(params: Any, x: Any) -> Any:
    """A linear layer, and batch norm as it trains."""
    y = x @ params["0"]["kernel"] + params["0"]["bias"]
    y = (y - y.mean(0)) / jnp.sqrt(y.var(0) + 1e-5)
    return y * params["1"]["scale"] + params["1"]["bias"]


def test_what_training_does_not_compare_is_told():
    """Null gradients, and statistics."""
    theirs = excite(torch.nn.Sequential(torch.nn.Linear(D, WIDE), torch.nn.BatchNorm1d(WIDE)).eval(), seed=1)
    array = {name: parameter.detach().numpy() for name, parameter in theirs.named_parameters()}
    ours = {
        "0": {"kernel": array["0.weight"].T, "bias": array["0.bias"]},
        "1": {"scale": array["1.weight"], "bias": array["1.bias"]},
    }
    learning = TrainingSpec(
        batches=[(X,)] * 2,
        torch_loss=lambda model, x: (model(x) ** 3).mean(),
        jax_loss=lambda params, x: (normalised(params, x) ** 3).mean(),
        torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        jax_optimizer=optax.sgd(0.1),
    )
    report = compare(theirs, ours, (X,), checks=("weights",), call_jax=normalised, training=learning, tier="A")
    assert report.status == "equal", str(report)
    assert report.not_covered == [
        "0.bias in training: null gradients",
        "1.running_mean in training: a buffer, not compared there",
        "1.running_var in training: a buffer, not compared there",
    ]


class TorchPaced(torch.nn.Module):
    """Divides by a mean and a count that training keeps."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(D, WIDE)
        self.register_buffer("mean", torch.ones(WIDE))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x):
        y = self.up(x)
        self.mean.mul_(0.9).add_(0.1 * y.detach().abs().mean(0))
        self.steps += 1
        return y / self.mean / self.steps


class Paced(nnx.Module):
    def __init__(self, decay):
        self.up, self.mean, self.decay = nnx.Linear(D, WIDE, rngs=nnx.Rngs(0)), nnx.BatchStat(jnp.ones(WIDE)), decay
        self.steps = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        y = self.up(x)
        fresh = jax.lax.stop_gradient(jnp.abs(y).mean(0))
        self.mean[...] = self.decay * self.mean[...] + (1 - self.decay) * fresh
        self.steps[...] += 1
        return y / self.mean[...] / self.steps[...]


@pytest.mark.parametrize("decay", [0.9, 0.8])
def test_what_a_model_keeps_for_itself_goes_from_step_to_step(decay):
    draw = np.random.default_rng(4)
    learning = TrainingSpec(
        batches=[(draw.standard_normal((B, D)).astype(np.float32),) for _ in range(3)],
        torch_loss=lambda model, x: (model(x) ** 2).mean(),
        jax_loss=lambda model, x: (model(x) ** 2).mean(),
        torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        jax_optimizer=optax.sgd(0.1),
    )
    rules = replace(LINE, constants=frozenset({"mean"}))
    found = compare_training(TorchPaced(), Paced(decay), learning, rules)
    assert [stage.status for stage in found.stages[-2:]] == ["equal" if decay == 0.9 else "different"] * 2, found.stages
    assert found.stages[-2].name == "running statistics"
    assert found.buffers == []
    assert ("step 0: mean, max/rms" in found.stages[-2].says) == (decay == 0.8)


class LinenNorm(flax.linen.Module):
    momentum: float

    @flax.linen.compact
    def __call__(self, x):
        x = flax.linen.Dense(WIDE, name="0")(x)
        return flax.linen.BatchNorm(use_running_average=False, momentum=self.momentum, epsilon=1e-5, name="1")(x)


def test_linens_new_statistics_come_behind_the_loss():
    """Its variance is biased, so that means alone are equal."""
    theirs = excite(torch.nn.Sequential(torch.nn.Linear(D, WIDE), torch.nn.BatchNorm1d(WIDE)), seed=1)
    array = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    params = {"0": {"kernel": array["0.weight"].T, "bias": array["0.bias"]}, "1": {"scale": array["1.weight"]}}
    params["1"]["bias"] = array["1.bias"]
    ours = {"params": params, "batch_stats": {"1": {"mean": array["1.running_mean"], "var": array["1.running_var"]}}}
    for momentum, says in ((0.9, "step 0: 1.running_var"), (0.8, "jax moves it 2 times as far")):

        def loss(held: Any, x: Any, momentum: float = momentum) -> Any:
            output, updates = LinenNorm(momentum).apply(held, x, mutable=["batch_stats"])
            return (output**3).mean(), updates

        learning = TrainingSpec(
            batches=[(X,)] * 2,
            torch_loss=lambda model, x: (model(x) ** 3).mean(),
            jax_loss=loss,
            torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
            jax_optimizer=optax.sgd(0.1),
        )
        call = {"call_jax": lambda held, x, m=momentum: LinenNorm(m).apply(held, x, mutable=["batch_stats"])[0]}
        report = compare(theirs, ours, (X,), checks=("weights",), training=learning, tier="A", **call)
        stages = {stage.name: stage for stage in report.stages}
        assert says in stages["running statistics"].says, str(report)
        assert {name for name, stage in stages.items() if stage.status == "different"} == {"running statistics"}
