"""Training on both sides from the same weights, on the same batches, with the same units dropped."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxformer.config import ModelConfig
from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import to_torch
from jaxformer.errors import ParityError
from jaxformer.models import Model, build
from jaxformer.parity.calls import call_jax, call_torch, hostile_inputs
from jaxformer.parity.checks import load_torch
from jaxformer.parity.dropout import feed_masks, with_masks
from jaxformer.parity.inputs import excite, widen
from jaxformer.parity.measure import LINES, NULL_GRADIENT, host
from jaxformer.settings import IGNORE_INDEX, OptimizerConfig, ScheduleConfig, Spread
from jaxformer.training import losses, optimizers, schedules, step

ONE_STEP = 1e-9
"""Tier A: the largest difference after one optimizer step, in learning rates."""
LOSS = 1e-12
"""Tier A: the largest relative difference of a loss on the way."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """All that both sides share."""

    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    smoothing: float = 0.0
    spread: Spread = "all"
    ignore_index: int = IGNORE_INDEX
    steps: int = 100
    batch: int = 5

    def batches(self) -> Iterator[tuple[tuple[np.ndarray, ...], np.ndarray]]:
        """A model's inputs, and targets `B T`; every third target is not counted."""
        rng = np.random.default_rng(0)
        for number in range(self.steps):
            inputs = hostile_inputs(self.model, self.batch, self.model.context, seed=number)
            targets = rng.integers(0, self.model.vocab_size, inputs[-1].shape, np.int32)
            targets.ravel()[::3] = self.ignore_index
            yield inputs, targets

    def rules(self) -> dict[str, Any]:
        """The loss's own settings."""
        return {"ignore_index": self.ignore_index, "smoothing": self.smoothing, "spread": self.spread}

    def first_rate(self) -> float:
        """The learning rate of the first step."""
        return self.optimizer.learning_rate * float(schedules.make_schedule(self.schedule)(0))


@dataclass(frozen=True)
class Course:
    """What happened: float64, by torch's names."""

    losses: np.ndarray
    first: Mapping[str, np.ndarray]
    """Parameters after one step."""
    last: Mapping[str, np.ndarray]
    """Parameters at the end."""
    steepest: Mapping[str, np.ndarray]
    """The largest gradient of each single parameter, in absolute value, on the whole way."""


KEEP_GRADIENT = optax.GradientTransformation(
    init=lambda params: jax.tree.map(jnp.zeros_like, params),
    update=lambda updates, state, params=None: (updates, updates),
)
"""Changes nothing; its state is the gradient that came last."""


def excited(training: Training) -> Model:
    """The float32 weights that both sides start from."""
    return excite(build(training.model), seed=1)


def dropout_key(i: int) -> jax.Array:
    """The key of a step's dropout."""
    return jax.random.fold_in(jax.random.key(2), i)


def jax_course(training: Training) -> Course:
    """Train in JAX, in float64."""

    def loss(model, batch, key):
        return losses.cross_entropy(call_jax(model, *batch[0], key=key), batch[1], **training.rules())

    with jax.enable_x64(True):
        optimizer = optax.chain(KEEP_GRADIENT, optimizers.make_optimizer(training.optimizer, training.schedule))
        state = step.train_state(widen(excited(training)), optimizer)
        advance = jax.jit(functools.partial(step.train_step, loss=loss, optimizer=optimizer))
        values, first, steepest = [], {}, {}
        for i, batch in enumerate(training.batches()):
            state, value = advance(state, jax.tree.map(jnp.asarray, batch), dropout_key(i))
            steepest = _steeper(steepest, to_torch(state.moments[0], TWIN))
            values.append(float(value))
            first = first or to_torch(state.model, TWIN)
        return Course(np.array(values), first, to_torch(state.model, TWIN), steepest)


def torch_course(training: Training) -> Course:
    """Train in torch, in float64; the units to drop are those that JAX draws."""
    import torch

    import torch_ref.models
    import torch_ref.training.losses
    import torch_ref.training.optimizers
    import torch_ref.training.step

    def loss(model, batch):
        return torch_ref.training.losses.cross_entropy(call_torch(model, *batch[0]), batch[1], **training.rules())

    start = excited(training)
    drawn = jax.jit(with_masks(lambda model, inputs, key: call_jax(model, *inputs, key=key)))
    model = load_torch(torch_ref.models.build(training.model), start).double().train()
    optimizer, scheduler = torch_ref.training.optimizers.make_optimizer(model, training.optimizer, training.schedule)
    values, first, steepest = [], {}, {}
    for i, batch in enumerate(training.batches()):
        _, masks = drawn(start, batch[0], dropout_key(i))
        tensors = tuple(map(torch.from_numpy, batch[0])), torch.from_numpy(batch[1]).long()
        with feed_masks(model, masks):
            total, count = loss(model, tensors)
        gradients = torch.autograd.grad(total / count, list(model.parameters()))
        steepest = _steeper(steepest, dict(zip(dict(model.named_parameters()), map(host, gradients), strict=True)))
        with feed_masks(model, masks):
            value = torch_ref.training.step.train_step(
                model, tensors, loss=loss, optimizer=optimizer, scheduler=scheduler, clip_norm=training.optimizer.clip_norm
            )
        values.append(float(value))
        first = first or _parameters(model)
    return Course(np.array(values), first, _parameters(model), steepest)


def check_course(ours: Course, reference: Course, training: Training) -> list[str]:
    """Tier A: every loss on the way, and every parameter after the first step and at the end.

    A parameter whose gradient is null on the whole way, on both sides, is reported and not compared: Adam turns its rounding
    noise into steps of up to a learning rate. Returns the names of tensors with such parameters.
    """
    worst = np.abs(ours.losses - reference.losses) / np.abs(reference.losses)
    if not np.all(worst <= LOSS):
        raise ParityError(
            f"loss of step {int(np.argmax(~(worst <= LOSS)))}: relative {worst.max():.1e}; tier A allows {LOSS:.0e}"
        )
    everything = np.concatenate([steep.ravel() for steep in reference.steepest.values()])
    noise, rate = NULL_GRADIENT * np.sqrt(np.mean(np.square(everything))), training.first_rate()
    nulls = []
    for name, steep in reference.steepest.items():
        null = (steep <= noise) & (steep > 0) & (ours.steepest[name] <= noise)
        nulls += [name] if null.any() else []
        gap = np.abs(ours.first[name] - reference.first[name])[~null].max(initial=0.0)
        if not gap <= ONE_STEP * rate:
            raise ParityError(f"{name} after one step: {gap / rate:.1e} learning rates; tier A allows {ONE_STEP:.0e}")
        rms = np.sqrt(np.mean(np.square(reference.last[name])))
        gap = np.abs(ours.last[name] - reference.last[name])[~null].max(initial=0.0) / rms
        if not gap <= LINES["parameter"][1]:
            raise ParityError(
                f"{name} after {training.steps} steps: max/rms {gap:.1e}; tier A allows {LINES['parameter'][1]:.0e}"
            )
    return nulls


def _steeper(before: Mapping[str, np.ndarray], gradients: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.maximum(before.get(name, 0.0), np.abs(gradient)) for name, gradient in gradients.items()}


def _parameters(model: Any) -> dict[str, np.ndarray]:
    return {name: host(parameter).copy() for name, parameter in model.named_parameters()}
