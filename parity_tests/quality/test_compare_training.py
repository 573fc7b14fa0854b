"""A user's own pair, trained side by side: equal where it is, and red for what people get wrong."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch.optim.lr_scheduler import LambdaLR

from jaxformer.errors import JaxformerError
from jaxformer.parity.diagnose.formulas.optimizer_steps import explain_schedule
from jaxformer.parity.report.report import plot_training
from parity_tests.support.helpers import usually
from parity_tests.support.training_pair import (
    FEW,
    LEARNING,
    PARTS,
    RATE,
    STEPS,
    LinenNet,
    Net,
    TorchNet,
    coupled,
    course,
    jax_loss,
    linen_loss,
    matrices,
    optimizer,
    outcome,
    rate,
)

pytestmark = [pytest.mark.foreign, pytest.mark.slow]


def test_twenty_steps_with_dropout_clipping_a_schedule_and_accumulation_are_equal(tmp_path):
    found = course()
    assert outcome(found) == dict.fromkeys(("loss", "optimizer", "schedule", "train"), "equal"), found.stages
    assert len(found.steps) == STEPS
    assert found.nulls == []
    assert len({step.loss for step in found.steps}) == STEPS
    plot_training(found.steps, tmp_path / "course.png")
    assert (tmp_path / "course.png").read_bytes().startswith(b"\x89PNG")


def test_linens_parameters_and_a_key_for_dropout():
    parameters = LinenNet().init({"params": jax.random.key(0), "dropout": jax.random.key(1)}, FEW.batches[0][0])["params"]
    found = course(replace(FEW, jax_loss=linen_loss), jax_model=parameters)
    assert set(outcome(found).values()) == {"equal"}, found.stages


TRAPS = {
    "optax decays by 1e-4 by default": (optimizer(decay=None), "optimizer", "jax decays weights by 0.0099 less"),
    "Adam's epsilon": (optimizer(epsilon=1e-7), "optimizer", "torch epsilon 1e-08; jax epsilon 1e-07 (residual "),
    "Adam's epsilon in the root": (
        optimizer(epsilon=0.0, root=1e-8),
        "optimizer",
        "after the root: sqrt(x) + eps; jax adds epsilon under the root: sqrt(x + eps)",
    ),
    "clip without the 1e-6": (optimizer(clipping=optax.clip_by_global_norm), "train", "max/rms"),
    "coupled decay": (
        coupled(),
        "optimizer",
        "torch decays weights apart from the gradient (AdamW); jax adds the weight decay to the gradient (L2) (residual ",
    ),
    "matrices alone": (
        optimizer(mask=matrices),
        "optimizer",
        "torch decays all parameters, gains and biases too; jax decays matrices alone",
    ),
    "Nesterov's momentum": (
        optimizer(nesterov=True),
        "optimizer",
        "torch uses Adam's momentum; jax uses Nesterov's momentum (residual ",
    ),
    "gradients summed": (optimizer(mean=False), "train", "max/rms"),
}


@pytest.mark.parametrize("trap", usually(TRAPS, "Adam's epsilon", "coupled decay", "gradients summed"))
def test_what_people_get_wrong_with_optimizers(trap):
    wrong, stage, says = TRAPS[trap]
    found = course(replace(FEW, jax_optimizer=wrong))
    red = {stage.name: stage.says for stage in found.stages if stage.status == "different"}
    assert "train" in red
    assert outcome(found)["loss"] == outcome(found)["schedule"] == "equal"
    assert says in red[stage], red
    assert red[stage].startswith("step ")
    assert found.steps[-1].parameter_error > 1e-11


def test_a_schedule_one_step_late():
    found = course(replace(FEW, jax_schedule=lambda step: rate(step - 1)))
    assert outcome(found) == {"loss": "equal", "optimizer": "equal", "schedule": "different", "train": "equal"}
    assert "step 0: 0.004 in torch, 0 in jax" in found.stages[2].says


def test_a_loss_over_another_number():
    found = course(replace(FEW, jax_loss=lambda model, ids, targets: 2 * jax_loss(model, ids, targets)))
    assert set(outcome(found).values()) == {"different", "equal"}
    assert "the gradient differs already" in found.stages[1].says
    assert found.stages[0].says.endswith("; jax's loss is 2 times torch's, and so are its gradients")


def test_a_loss_that_is_nan():
    found = course(replace(FEW, jax_loss=lambda model, ids, targets: jnp.nan * jax_loss(model, ids, targets)))
    assert set(outcome(found).values()) == {"different", "equal"}
    assert found.stages[0].says.startswith("step 0: ")
    assert "nan in jax" in found.stages[0].says


def test_a_rate_that_is_0_moves_nothing():
    still = replace(FEW, torch_schedule=lambda optimizer: LambdaLR(optimizer, lambda step: 0.0))
    found = course(replace(still, jax_optimizer=optax.MultiSteps(optax.sgd(0.0), PARTS), jax_schedule=None))
    assert outcome(found)["optimizer"] == "failed"
    assert "nothing moves" in found.stages[1].says
    assert course(still).stages[1].says == "step 0: jax moves where torch's learning rate is 0"


def test_a_tensor_that_torch_has_frozen():
    torch_model = TorchNet()
    torch_model.up.weight.requires_grad_(False)
    assert course(FEW, torch_model).stages[1].says.startswith("torch freezes up.weight; jax trains it; step 0: ")


def test_sgd_with_gradients_summed_moves_twice_as_far():
    def sgd(mean):
        return optax.MultiSteps(optax.sgd(RATE), PARTS, use_grad_mean=mean)

    base = replace(
        FEW,
        torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=RATE),
        torch_schedule=None,
        jax_schedule=None,
        clip_norm=None,
    )
    assert outcome(course(replace(base, jax_optimizer=sgd(True)))) == dict.fromkeys(("loss", "optimizer", "train"), "equal")
    assert "jax moves 2 times as far" in course(replace(base, jax_optimizer=sgd(False))).stages[1].says


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (lambda step: step - 1, "jax is 1 step late"),
        (lambda step: step + 2, "jax is 2 steps early"),
        (lambda step: step // 2, "jax's schedule runs 2 times as slowly"),
        (lambda step: 3 * step, "jax's schedule runs 3 times as fast"),
    ],
)
def test_how_schedules_differ(schedule, says):
    def of(step):
        return np.cos(np.clip(step, 0, 40) / 40)

    steps = np.arange(20)
    assert explain_schedule(of(steps), of(schedule(steps))) == says
    assert explain_schedule(of(steps), 0.5 * of(steps)) == "jax's rates are 0.5 times torch's"
    assert explain_schedule(of(steps), np.sin(steps)) == ""


REFUSED = {
    "JAX drops nothing": ({"jax_model": Net(nnx.Rngs(0), rate=0.0)}, "torch drops out and JAX does not"),
    "torch drops nothing": ({"torch_model": TorchNet(rate=0.0)}, "4 of 4|2 of 2 dropout masks were not used by torch"),
    "torch's is no optimizer": (
        {"learning": replace(FEW, torch_optimizer=lambda model: [*model.parameters()])},
        "torch_optimizer returns a list; give a function that makes an optimizer, as lambda model",
    ),
    "a step that computes the loss again": (
        {"learning": replace(FEW, torch_optimizer=lambda model: torch.optim.LBFGS(model.parameters()))},
        "torch_optimizer makes an LBFGS, whose step computes the loss again",
    ),
    "bfloat16 in the loss": (
        {"learning": replace(FEW, jax_loss=lambda *given: jax_loss(*given).astype(jnp.bfloat16))},
        r"loss: jax gave bfloat16\[\]; tier A compares one float64 number",
    ),
    "bfloat16 in the optimizer": (
        {"learning": replace(FEW, jax_optimizer=optax.MultiSteps(optax.sgd(RATE), PARTS, accumulator_dtype=jnp.bfloat16))},
        "keeps acc_grads.* in bfloat16, tier A compares float64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared(case):
    given, says = REFUSED[case]
    with pytest.raises(JaxformerError, match=says):
        course(**{"learning": FEW, **given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batches": []}, "0 batches are not a whole number of steps of 2"),
        ({"accumulate": 0}, "accumulate = 0"),
        ({"clip_norm": 0.0}, "clip_norm = 0"),
        ({"torch_optimizer": 1e-3}, "torch_optimizer = 0.001 cannot be called; give a function that makes an optimizer"),
        ({"jax_optimizer": "adam"}, "jax_optimizer is a str; give one of optax, as optax.adamw"),
    ],
)
def test_settings_that_make_no_sense(given, says):
    with pytest.raises(JaxformerError, match=says):
        replace(LEARNING, **given)


def test_the_models_stay_as_they_were():
    torch_model, jax_model = TorchNet().eval(), Net(nnx.Rngs(0))
    jax_model.eval()
    before = [p.detach().clone() for p in torch_model.parameters()], jax.tree.leaves(jax_model)
    course(FEW, torch_model, jax_model)
    assert not torch_model.training
    assert jax_model.dropout.deterministic
    assert all(torch.equal(p, q) for p, q in zip(torch_model.parameters(), before[0], strict=True))
    assert all(p is q for p, q in zip(jax.tree.leaves(jax_model), before[1], strict=True))
    assert torch.get_default_dtype() == torch.float32
