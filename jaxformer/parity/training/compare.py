"""Training on both sides, step beside step: the same weights, the same batches, the same units dropped.

spec = TrainingSpec(
    batches=[(inputs, targets), ...],
    torch_loss=lambda model, inputs, targets: F.cross_entropy(model(inputs), targets),
    jax_loss=lambda model, inputs, targets: optax.softmax_cross_entropy_with_integer_labels(model(inputs), targets).mean(),
    torch_optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01),
    jax_optimizer=optax.adamw(1e-3, weight_decay=0.01),
)
result = compare_training(torch_model, jax_model, spec, rules)
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family
from jaxformer.errors import ParityError
from jaxformer.parity.diagnose.formulas.optimizer_steps import flat
from jaxformer.parity.numerics.float32_tables import NO_TABLES, Tables
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, check_float32, host, rms
from jaxformer.parity.pairing.placement import OneSided
from jaxformer.parity.probe.parameters import frozen_in
from jaxformer.parity.training.running_statistics import RunningStatistics, TrainedAlone, held_in_jax
from jaxformer.parity.training.shared_dropout import check_masks
from jaxformer.parity.training.spec import TrainingSpec
from jaxformer.parity.training.step_comparison import StepComparison, TrainingResult
from jaxformer.parity.training.trainers import JaxTrainer, StepSnapshot, TorchTrainer

MOST_STEPS = 50
"""Largest number of float32 steps: after more, rounding has grown so far that a comparison shows little."""


def check_training32(torch_model: Any, jax_model: PyTree, spec: TrainingSpec, rules: Family = TWIN) -> float:
    """Train both models in float32, and torch's in float64 too; return the largest ratio of an error to its tier B tolerance.

    The models are copied, and the same units are dropped. Raises ParityError above 1. Entries with null gradients are left out:
    their updates are rounding noise.
    """
    weights = {name: host(tensor).copy() for name, tensor in torch_model.named_parameters()}
    sides = TorchTrainer(torch_model, spec), TorchTrainer(torch_model, spec, float64=False)
    ours, snapshots = JaxTrainer(jax_model, weights, spec, rules, float64=False), []
    both = zip(spec.steps(), spec.steps(float64=False), range(MOST_STEPS), strict=False)
    for precise, low, number in both:
        masks = ours.masks(number, low)
        snapshots.append((sides[0].step(precise, masks), sides[1].step(low, masks), ours.step(number, low)))
    truth, theirs, mine = zip(*snapshots, strict=True)
    kept = not_null(truth)
    truth, theirs, mine = (changes(side, weights, kept) for side in (truth, theirs, mine))
    return max(check_float32(f"{what} in float32", mine[what], theirs[what], truth[what]) for what in truth)


def not_null(snapshots: Sequence[StepSnapshot]) -> dict[str, np.ndarray]:
    """Mask of the entries whose float64 gradient at some step exceeded rounding noise around zero."""
    names = snapshots[0].gradients
    largest = {name: np.max([np.abs(snapshot.gradients[name]) for snapshot in snapshots], 0) for name in names}
    noise = NULL_GRADIENT * rms(largest.values())
    return {name: array > noise for name, array in largest.items()}


def changes(
    snapshots: Sequence[StepSnapshot], weights: Mapping[str, np.ndarray], kept: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Effects of training on one side: the losses, and the updates of the kept entries in the first step and in all steps."""
    found = {"losses": np.array([snapshot.loss for snapshot in snapshots])}
    for what, after in (("first step", snapshots[0].parameters), (f"{len(snapshots)} steps", snapshots[-1].parameters)):
        found[what] = flat(after, kept).astype(np.float64) - flat(weights, kept)
    return found


def compare_training(
    torch_model: Any,
    jax_model: PyTree,
    spec: TrainingSpec,
    rules: Family = TWIN,
    tables: Tables = NO_TABLES,
    alone: Sequence[OneSided] = (),
) -> TrainingResult:
    """Train copies of both models in float64 (tier A), in training mode, from torch's weights, and compare each step.

    A JAX model is any tree with float arrays as its parameters: an NNX module, or a dict of Linen's. JAX code that computes one
    of torch's `tables` gets torch's values. `alone` are parameters that one side does not have. torch drops the units that jax
    drew. Raises ParityError if the sides cannot drop the same units, and ConversionError if weights do not fit.
    """
    with fresh_traces(tables), jax_float64(tables):
        weights = {name: host(tensor).copy() for name, tensor in torch_model.named_parameters()}
        frozen = frozen_in(torch_model)
        held = held_in_jax(jax_model, rules, frozen)
        theirs = TorchTrainer(torch_model, spec)
        ours = JaxTrainer(jax_model, weights, spec, rules, alone=alone, held=held)
        trained_alone = TrainedAlone(frozen, alone, weights)
        comparison, drawn = StepComparison(weights, theirs.settings()), []
        statistics = RunningStatistics(jax_model, rules, theirs.held())
        for number, batches in enumerate(spec.steps()):
            masks, rates = ours.masks(number, batches), theirs.rates()
            if number < 2:
                drawn += chain(*masks)
                check_masks(drawn)
            both = trained_alone.split(theirs.step(batches, masks), ours.step(number, batches))
            comparison.add({name: rate for name, rate in rates.items() if name in both[0].parameters}, *both)
            statistics.add(theirs.held(), ours.rest)
            if spec.jax_schedule is not None:
                comparison.schedule.append((next(iter(rates.values())), float(spec.jax_schedule(jnp.int64(number)))))
        result = comparison.result([name for name in theirs.changed_buffers() if name not in statistics.pairs])
        stages = trained_alone.added_to(result.stages, comparison.noise)
        return result._replace(stages=[*stages[:-1], *statistics.stages(), *stages[-1:]])


@contextmanager
def fresh_traces(tables: Tables) -> Iterator[None]:
    """Clear JAX's cache of traced functions before and after, if there are tables.

    An earlier trace would not contain torch's tables, and a later call would still contain them.
    """
    if not tables.held:
        yield
        return
    jax.clear_caches()
    try:
        yield
    finally:
        jax.clear_caches()


def check_training(result: TrainingResult) -> None:
    """Raise ParityError for the first stage that is not equal."""
    for stage in result.stages:
        if stage.status != "equal":
            raise ParityError(f"{stage.name}: {stage.says}")
