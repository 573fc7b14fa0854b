"""A user's own pair, trained side by side: equal where it is, and red for what people get wrong."""

from dataclasses import replace
from functools import partial
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from flax import nnx
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from jaxformer.convert.rules import Family, Rule
from jaxformer.errors import JaxformerError
from jaxformer.parity.diagnose.formulas.optimizer_steps import explain_schedule
from jaxformer.parity.report.report import plot_training
from jaxformer.parity.training.compare import compare_training
from jaxformer.parity.training.trainers import TrainingSpec
from jaxformer.training.optimizers import clip
from parity_tests.support.helpers import usually

pytestmark = pytest.mark.foreign

B, T, V, D, WIDE, STEPS, PARTS, RATE, CLIP = 6, 5, 11, 8, 9, 20, 2, 0.02, 0.1


class TorchNet(torch.nn.Module):
    """Drops by a module and by a function."""

    def __init__(self, rate: float = 0.3):
        super().__init__()
        self.embed = torch.nn.Embedding(V, D)
        self.up = torch.nn.Linear(D, WIDE)
        self.dropout = torch.nn.Dropout(rate)
        self.down = torch.nn.Linear(WIDE, D)
        self.norm = torch.nn.LayerNorm(D)
        self.head = torch.nn.Linear(D, V)
        self.rate = rate

    def forward(self, ids):
        x = F.dropout(self.embed(ids), self.rate, self.training)
        x = self.norm(x + self.down(self.dropout(F.gelu(self.up(x)))))
        return self.head(x)


class Net(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, rate: float = 0.3):
        self.embed = nnx.Embed(V, D, rngs=rngs)
        self.first = nnx.Dropout(rate, rngs=rngs)
        self.up = nnx.Linear(D, WIDE, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)
        self.down = nnx.Linear(WIDE, D, rngs=rngs)
        self.norm = nnx.LayerNorm(D, epsilon=1e-5, use_fast_variance=False, rngs=rngs)
        self.head = nnx.Linear(D, V, rngs=rngs)

    def __call__(self, ids):
        x = self.first(self.embed(ids))
        x = self.norm(x + self.down(self.dropout(jax.nn.gelu(self.up(x), approximate=False))))
        return self.head(x)


class LinenNet(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, ids):
        drop = flax.linen.Dropout(0.3, deterministic=False)
        x = drop(flax.linen.Embed(V, D, name="embed")(ids))
        hidden = jax.nn.gelu(flax.linen.Dense(WIDE, name="up")(x), approximate=False)
        x = x + flax.linen.Dense(D, name="down")(drop(hidden))
        return flax.linen.Dense(V, name="head")(flax.linen.LayerNorm(epsilon=1e-5, use_fast_variance=False, name="norm")(x))


RULES = Family(
    "user",
    {},
    (
        Rule("kernel", "weight", "transposed"),
        Rule("embedding", "weight"),
        Rule("scale", "weight"),
        Rule("bias", "bias"),
    ),
)


def factor(step: int) -> float:
    return min(1.0, (step + 1) / 5)


def rate(step: Any) -> Any:
    return RATE * jnp.minimum(1.0, (step + 1) / 5)


def optimizer(
    *, decay: float | None = 0.01, epsilon: float = 1e-8, root: float = 0.0, clipping: Any = clip, mean: bool = True, **how: Any
) -> Any:
    """torch's own, piece by piece."""
    decayed = how if decay is None else {"weight_decay": decay, **how}
    inner = optax.chain(clipping(CLIP), optax.adamw(rate, eps=epsilon, eps_root=root, **decayed))
    return optax.MultiSteps(inner, PARTS, use_grad_mean=mean)


def matrices(parameters: Any) -> Any:
    return jax.tree.map(lambda array: array.ndim > 1, parameters)


def coupled() -> Any:
    inner = optax.chain(clip(CLIP), optax.add_decayed_weights(0.01), optax.scale_by_adam(), optax.scale_by_learning_rate(rate))
    return optax.MultiSteps(inner, PARTS)


def batches(n: int = STEPS * PARTS) -> list[tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(0)
    return [(rng.integers(0, V, (B, T), np.int32), rng.integers(0, V, (B, T), np.int32)) for _ in range(n)]


def cross_entropy(logits, targets):
    return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()


def jax_loss(model, ids, targets):
    return cross_entropy(model(ids), targets)


def linen_loss(parameters, ids, targets, key):
    return cross_entropy(LinenNet().apply({"params": parameters}, ids, rngs={"dropout": key}), targets)


LEARNING = TrainingSpec(
    batches=batches(),
    torch_loss=lambda model, ids, targets: F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()),
    jax_loss=jax_loss,
    torch_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=RATE),
    jax_optimizer=optimizer(),
    torch_schedule=lambda optimizer: LambdaLR(optimizer, factor),
    jax_schedule=rate,
    clip_norm=CLIP,
    accumulate=PARTS,
)
FEW = replace(LEARNING, batches=batches(3 * PARTS))


def course(learning=LEARNING, torch_model=None, jax_model=None):
    torch.manual_seed(0)
    return compare_training(torch_model or TorchNet(), jax_model or Net(nnx.Rngs(0)), learning, RULES)


def outcome(found):
    return {stage.name: stage.status for stage in found.stages}


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


def test_clipping_without_the_1e_6_is_named_where_the_first_step_shows_it():
    base = replace(FEW, torch_optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=RATE), torch_schedule=None)
    inner = optax.chain(optax.clip_by_global_norm(CLIP), optax.sgd(RATE))
    wrong = optax.MultiSteps(inner, PARTS)
    found = course(replace(base, jax_optimizer=wrong, jax_schedule=None))
    assert "torch clips gradients by max / (norm + 1e-6); jax clips gradients by max / norm (residual " in found.stages[1].says


def by_tensors(limit):
    """Each tensor clipped by its own norm."""

    def clipped(gradients, state, parameters=None):
        return jax.tree.map(lambda g: g * jnp.minimum(1, limit / jnp.linalg.norm(g)), gradients), state

    return optax.GradientTransformation(lambda parameters: optax.EmptyState(), clipped)


CLIPPINGS = {
    "each batch": (
        lambda then: optax.chain(optax.clip_by_global_norm(CLIP), optax.MultiSteps(then, PARTS).gradient_transformation()),
        "clips the gradient of each batch before it is accumulated",
    ),
    "each tensor": (
        lambda then: optax.MultiSteps(optax.chain(by_tensors(CLIP), then), PARTS),
        "clips the gradient of each tensor by its own norm",
    ),
    "each entry": (
        lambda then: optax.MultiSteps(optax.chain(optax.clip(CLIP), then), PARTS),
        "clips each entry of the gradients",
    ),
}


@pytest.mark.parametrize("how", CLIPPINGS)
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_what_is_clipped(kind, how):
    clipped, says = CLIPPINGS[how]
    torch_optimizer = {"sgd": descent, "adam": lambda model: torch.optim.Adam(model.parameters(), lr=RATE)}[kind]
    ten = {"torch_loss": lambda *given: 10 * FEW.torch_loss(*given), "jax_loss": lambda *given: 10 * jax_loss(*given)}
    both = {"torch_optimizer": torch_optimizer, "jax_optimizer": clipped(getattr(optax, kind)(RATE))}
    found = course(replace(FEW, torch_schedule=None, jax_schedule=None, **both, **ten))
    assert f"torch clips gradients by max / (norm + 1e-6); jax {says} (residual " in found.stages[1].says


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_clipping_behind_the_optimizer(decay):
    wrong = optax.chain(
        optax.scale_by_adam(),
        optax.clip_by_global_norm(CLIP),
        optax.add_decayed_weights(decay),
        optax.scale_by_learning_rate(RATE),
    )
    says = moved_as(
        wrong, clip_norm=CLIP, torch_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=decay)
    )
    assert f"to a norm of {CLIP:g}, before Adam; jax clips what Adam gives, behind it: to {CLIP:g} (residual " in says


def test_what_the_first_step_hardly_shows_is_named_where_it_grows():
    ten = {"torch_loss": lambda *given: 10 * FEW.torch_loss(*given), "jax_loss": lambda *given: 10 * jax_loss(*given)}
    base = replace(FEW, **ten)
    wrong = replace(base, jax_optimizer=optimizer(clipping=optax.clip_by_global_norm))
    assert {"optimizer": "different", "train": "different"}.items() <= outcome(found := course(wrong)).items()
    cause = "torch clips gradients by max / (norm + 1e-6); jax clips gradients by max / norm (residual "
    assert f"(tolerance 1e-09), but it grows: {cause}" in found.stages[1].says
    assert set(outcome(course(base)).values()) == {"equal"}


def moved_as(jax_optimizer, **spec):
    """What is said of an optimizer: of torch's Adam without decay and clipping, where no other is given."""
    plain = {"torch_schedule": None, "jax_schedule": None, "clip_norm": None, "accumulate": 1, "batches": batches(5)}
    plain["torch_optimizer"] = lambda model: torch.optim.Adam(model.parameters(), lr=RATE)
    found = course(replace(FEW, **{**plain, "jax_optimizer": jax_optimizer, **spec}))
    assert outcome(found)["loss"] == "equal"
    return found.stages[1].says if outcome(found)["train"] == "different" else "equal"


def rms_prop(model):
    return torch.optim.RMSprop(model.parameters(), lr=RATE)


def descent(model):
    return torch.optim.SGD(model.parameters(), lr=RATE)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def after_zeros(inner):
    """Takes a gradient of zeros in before each, and moves twice."""

    def update(gradients, state, parameters):
        first, state = inner.update(jax.tree.map(jnp.zeros_like, gradients), state, parameters)
        second, state = inner.update(gradients, state, parameters)
        return jax.tree.map(jnp.add, first, second), state

    return optax.GradientTransformation(inner.init, update)


def momentous(model, **how):
    return torch.optim.RMSprop(model.parameters(), lr=RATE, alpha=0.95, momentum=0.8, **how)


def nesterov(model):
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, nesterov=True)


MOMENTOUS = partial(optax.rmsprop, RATE, decay=0.95, eps_in_sqrt=False, momentum=0.8)


def stretched(step):
    return RATE * jnp.minimum(1.0, (step + 2) / 10)


MOVES = {
    "the same": (optax.adam(RATE), {}, "equal"),
    "RMSprop the same": (optax.rmsprop(RATE, 0.99, eps_in_sqrt=False), {"torch_optimizer": rms_prop}, "equal"),
    "momentum the same": (optax.sgd(RATE, 0.9), {"torch_optimizer": momentum}, "equal"),
    "RMSprop's epsilon": (
        optax.rmsprop(RATE, 0.99),
        {"torch_optimizer": rms_prop},
        "after the root: sqrt(x) + eps; jax adds epsilon under the root: sqrt(x + eps)",
    ),
    "RMSprop's decay": (
        optax.rmsprop(RATE, eps_in_sqrt=False),
        {"torch_optimizer": rms_prop},
        "torch decay of squares 0.99; jax decay of squares 0.9 (residual",
    ),
    "RMSprop with momentum the same": (MOMENTOUS(), {"torch_optimizer": momentous}, "equal"),
    "RMSprop centred the same": (MOMENTOUS(centered=True), {"torch_optimizer": partial(momentous, centered=True)}, "equal"),
    "RMSprop's momentum": (
        MOMENTOUS(nesterov=True),
        {"torch_optimizer": momentous},
        "torch uses heavy-ball momentum; jax uses Nesterov's momentum (residual",
    ),
    "RMSprop centred": (
        MOMENTOUS(centered=True),
        {"torch_optimizer": momentous},
        "torch does not center the squares; jax takes the squared mean from the squares (centered) (residual",
    ),
    "moves averaged": (
        optax.chain(optax.ema(0.9, debias=False), optax.scale_by_learning_rate(RATE)),
        {"torch_optimizer": momentum},
        "torch sums moves; jax averages moves: times 1 - momentum (residual",
    ),
    "Nesterov's momentum left out": (
        optax.sgd(RATE, 0.9),
        {"torch_optimizer": nesterov},
        "jax has no momentum, or the same in this step: torch uses Nesterov's momentum; jax uses heavy-ball momentum (residual",
    ),
    "gradients doubled": (
        optax.chain(optax.scale(2.0), optax.adam(RATE, eps=1e-3)),
        {"torch_optimizer": lambda model: torch.optim.Adam(model.parameters(), lr=RATE, eps=1e-3)},
        "torch takes gradients as they are; jax takes gradients times 2 (residual",
    ),
    "gradients of zero": (
        after_zeros(optax.adam(RATE)),
        {},
        "torch takes in one gradient a step; jax takes in a gradient of zeros before each (residual",
    ),
    "betas": (
        optax.adam(RATE, b2=0.95),
        {},
        "but at step 1 the optimizers part, and the gradients are equal: torch betas 0.9 and 0.999; jax betas 0.9 and 0.95",
    ),
    "unusual betas": (
        optax.adam(RATE, b1=0.87, b2=0.9937),
        {},
        "the gradients are equal: torch betas 0.9 and 0.999; jax betas 0.87 and 0.9937 (residual",
    ),
    "gradients clipped": (
        optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(RATE)),
        {"torch_optimizer": descent},
        "the gradients are equal; torch does not clip gradients; jax clips gradients to a norm of 0.5 (residual",
    ),
    "another rate, none that clips": (
        optax.sgd(0.7 * RATE),
        {"torch_optimizer": descent},
        "the gradients are equal; jax moves 0.7 times as far: a learning rate of 0.014 where torch has 0.02",
    ),
    "a huge rate": (optax.sgd(1e160), {"torch_optimizer": descent}, "jax moves 5e+161 times as far: a learning rate of 1e+160"),
    "no momentum": (optax.sgd(RATE), {"torch_optimizer": momentum}, "torch has a momentum of 0.9; jax has no momentum"),
    "a schedule that ends": (
        optax.sgd(RATE),
        {
            "torch_optimizer": descent,
            "torch_schedule": lambda optimizer: LambdaLR(optimizer, lambda step: float(step < 3)),
        },
        "at step 3 the optimizers part, and the gradients are equal: jax moves where torch's learning rate is 0",
    ),
    "one tensor farther": (
        optax.chain(optax.sgd(RATE), optax.masked(optax.scale(3.0), lambda p: jax.tree.map(lambda x: x.shape == (WIDE,), p))),
        {"torch_optimizer": descent},
        "jax moves tensors by other multiples of torch's moves: up.bias 3",
    ),
    "a tensor that is not decayed": (
        optax.adamw(RATE, weight_decay=0.1, mask=lambda p: jax.tree.map(lambda x: x.shape != (WIDE,), p)),
        {"torch_optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)},
        "jax decays up.bias by 0.1 less, and the other tensors as torch does",
    ),
    "two epsilons": (
        optax.adam(RATE, eps=1e-6, eps_root=1e-6),
        {"torch_optimizer": lambda model: torch.optim.Adam(model.parameters(), lr=RATE, eps=1e-6)},
        "jax adds epsilon under the root and after it: sqrt(x + eps) + eps (residual",
    ),
    "a rate that is NaN": (
        optax.sgd(float("nan")),
        {"torch_optimizer": descent},
        " entries by NaN or infinity",
    ),
    "a schedule stretched": (
        optax.adam(stretched),
        {"torch_schedule": lambda optimizer: LambdaLR(optimizer, factor)},
        "at step 1 the optimizers part, and the gradients are equal: jax moves 0.75 times as far: a learning rate of 0.006 "
        "where torch has 0.008",
    ),
}


@pytest.mark.parametrize(
    "case",
    usually(
        MOVES,
        "the same",
        "RMSprop's momentum",
        "gradients of zero",
        "unusual betas",
        "gradients clipped",
        "a schedule stretched",
    ),
)
def test_what_parts_two_optimizers_at_any_step(case):
    jax_optimizer, given, says = MOVES[case]
    assert says in (found := moved_as(jax_optimizer, **given)), found


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
