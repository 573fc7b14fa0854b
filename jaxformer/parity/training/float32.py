"""Training in float32, judged by torch's own rounding error (tier B): the losses, the first step, and all steps together."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family
from jaxformer.parity.diagnose.by_arrays.formulas.optimizer_steps import flat
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, check_float32, host, rms
from jaxformer.parity.training.spec import TrainingSpec
from jaxformer.parity.training.trainers import JaxTrainer, StepSnapshot, TorchTrainer

MOST_STEPS = 50
"""After more steps, rounding has grown so far that it tells little."""


def check_training32(torch_model: Any, jax_model: PyTree, spec: TrainingSpec, rules: Family = TWIN) -> float:
    """Train copies of both models in float32, and torch's in float64 too, with the same units dropped; the largest ratio of
    an error to its tolerance of tier B. ParityError above 1.

    Entries whose gradient is null are left out: what they do is rounding alone.
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
    """The entries whose gradient in float64 was once more than rounding noise around zero."""
    names = snapshots[0].gradients
    largest = {name: np.max([np.abs(snapshot.gradients[name]) for snapshot in snapshots], 0) for name in names}
    noise = NULL_GRADIENT * rms(largest.values())
    return {name: array > noise for name, array in largest.items()}


def changes(
    snapshots: Sequence[StepSnapshot], weights: Mapping[str, np.ndarray], kept: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What training did on one side: the losses, and what the first step and all steps added to the kept entries."""
    found = {"losses": np.array([snapshot.loss for snapshot in snapshots])}
    for what, after in (("first step", snapshots[0].parameters), (f"{len(snapshots)} steps", snapshots[-1].parameters)):
        found[what] = flat(after, kept).astype(np.float64) - flat(weights, kept)
    return found
