"""Two optimizers that part, at the first step or later: what one of them does otherwise is named."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from jaxformer.parity.diagnose.formulas.optimizer_numbers import Unknown, solved
from parity_tests.support.helpers import usually
from parity_tests.support.training_pair import (
    CLIP,
    FEW,
    PARTS,
    RATE,
    WIDE,
    batches,
    course,
    factor,
    jax_loss,
    optimizer,
    outcome,
)

pytestmark = pytest.mark.foreign


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


BEHIND = {
    "what Adam gives": 1,
    "what Adam gives, with the decay": 2,
    "the moves, times the learning rate and decayed, behind Adam": 3,
}


@pytest.mark.parametrize("what", BEHIND)
def test_clipping_behind_the_optimizer(what):
    decay = 0.05
    parts = [optax.scale_by_adam(), optax.add_decayed_weights(decay), optax.scale_by_learning_rate(RATE)]
    wrong = optax.chain(*parts[: BEHIND[what]], optax.clip_by_global_norm(CLIP), *parts[BEHIND[what] :])
    says = moved_as(
        wrong, clip_norm=CLIP, torch_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=decay)
    )
    assert f"torch clips gradients to a norm of {CLIP:g}; jax clips {what}, to that norm (residual " in says


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
    "no move": (optax.adam(0.0), {}, "the gradients are equal; jax moves 0 times as far: a learning rate of 0 where torch has"),
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


def test_numbers_that_overflow_are_passed_over():
    def run(numbers):
        return np.array([numbers[0] + 0.1 ** (1000 * (numbers[0] - 2))])

    rate = Unknown("epsilon", [(1.0,), (3.0,)], lambda numbers: {})
    assert solved(rate, run, np.array([3.0])) == pytest.approx((3.0,))
