"""Training cases: models with jaxformer's losses, optimizers and schedules, and their torch counterparts."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxformer.config.models import ModelConfig
from jaxformer.config.settings import IGNORE_INDEX, OptimizerConfig, ScheduleConfig, Spread
from jaxformer.evaluation.ladder import adversarial_inputs, call_jax, call_torch, load_torch
from jaxformer.models import Model, abstract
from jaxformer.parity.probe import excite
from jaxformer.parity.training.compare import check_training32, compare_training
from jaxformer.parity.training.step_comparison import TrainingResult
from jaxformer.parity.training.trainers import TrainingSpec
from jaxformer.pytree import map_named
from jaxformer.training import losses, optimizers, schedules

LARGE_LOGIT = np.float32(1000)
"""Logit of a sure model: float32 holds numbers of this size to 3e-5."""


@dataclass(frozen=True, kw_only=True)
class TrainingCase:
    """Training case: everything that both sides share."""

    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig = ScheduleConfig()
    smoothing: float = 0.0
    spread: Spread = "all"
    ignore_index: int = IGNORE_INDEX
    steps: int = 100
    batch: int = 5
    sure: float = 0.0
    """Amount by which the logit of token 0, then every target, exceeds the other, large logits: the model is sure. 0: off."""

    def start(self) -> Model:
        """Return the model before its first step, with excited weights."""
        model = excite(abstract(self.model), seed=1)
        sure = np.full(self.model.vocab_size, LARGE_LOGIT) + self.sure * (np.arange(self.model.vocab_size) == 0)
        return map_named(lambda name, leaf: leaf + sure if self.sure and name == "head.bias" else leaf, model)

    def batches(self) -> list[tuple[np.ndarray, ...]]:
        """Return batches: a model's inputs, followed by targets `B T`, of which every third is ignored."""
        rng, batches = np.random.default_rng(0), []
        for number in range(self.steps):
            inputs = adversarial_inputs(self.model, self.batch, self.model.context, seed=number)
            targets = rng.integers(0, self.model.vocab_size, inputs[-1].shape, np.int32)
            if self.sure:
                targets = np.zeros_like(targets)
            targets.ravel()[::3] = self.ignore_index
            batches.append((*inputs, targets))
        return batches

    def spec(self) -> TrainingSpec:
        """Return the training of the jax model and its torch twin."""
        from torch.optim.lr_scheduler import LambdaLR

        from torch_ref.training import losses as torch_losses
        from torch_ref.training import optimizers as torch_optimizers
        from torch_ref.training import schedules as torch_schedules

        rules = {"ignore_index": self.ignore_index, "smoothing": self.smoothing, "spread": self.spread}
        factor = schedules.make_schedule(self.schedule)

        def jax_loss(model: Any, *arrays: Any, key: Any) -> Any:
            logits = call_jax(model, *arrays[:-1], key=key)
            return losses.mean(*losses.cross_entropy(logits, arrays[-1], **rules))

        def torch_loss(model: Any, *tensors: Any) -> Any:
            logits = call_torch(model, *tensors[:-1])
            return torch_losses.mean(*torch_losses.cross_entropy(logits, tensors[-1], **rules))

        return TrainingSpec(
            batches=self.batches(),
            torch_loss=torch_loss,
            jax_loss=jax_loss,
            torch_optimizer=lambda model: torch_optimizers.make_optimizer(model, self.optimizer, ScheduleConfig())[0],
            jax_optimizer=optimizers.make_optimizer(self.optimizer, self.schedule),
            torch_schedule=lambda optimizer: LambdaLR(optimizer, torch_schedules.make_schedule(self.schedule)),
            jax_schedule=lambda step: self.optimizer.learning_rate * factor(step),
            clip_norm=self.optimizer.clip_norm,
        )


def compare_twins(training: TrainingCase) -> TrainingResult:
    """Train a model and its torch twin from the same excited weights."""
    return compare_training(*twins(training), training.spec())


def check_twins32(training: TrainingCase) -> float:
    """Train both in float32, and return the ratio of the difference to tier B's tolerance."""
    return check_training32(*twins(training), training.spec())


def twins(training: TrainingCase) -> tuple[Any, Model]:
    """Build torch's and jax's model with equal weights."""
    import torch_ref.models

    model = training.start()
    return load_torch(torch_ref.models.build(training.model), model), model
