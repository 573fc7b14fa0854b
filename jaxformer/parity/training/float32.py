"""Training in float32, judged by torch's own rounding error (tier B): the losses, the first step, and the way of all steps."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, check_float32, host, rms
from jaxformer.parity.training.spec import TrainingSpec
from jaxformer.parity.training.trainers import JaxSide, StepSnapshot, TorchSide

MOST_STEPS = 50
"""Further on, rounding has grown so far that it tells little."""


class Way(NamedTuple):
    """What training did to one side."""

    losses: np.ndarray
    first: np.ndarray
    """What the first step added to the parameters, one after the other."""
    last: np.ndarray
    """What all steps did."""


def check_training32(torch_model: Any, jax_model: PyTree, learning: TrainingSpec, rules: Family = TWIN) -> float:
    """Train copies of both models in float32, and torch's in float64 too, with the same units dropped; the largest ratio to a
    line of tier B. ParityError above 1.

    Entries whose gradient is null are left out: what they do is rounding alone.
    """
    weights = {name: host(tensor).copy() for name, tensor in torch_model.named_parameters()}
    sides = TorchSide(torch_model, learning), TorchSide(torch_model, learning, wide=False)
    ours, moments = JaxSide(jax_model, weights, learning, rules, wide=False), []
    both = zip(learning.steps(), learning.steps(wide=False), range(MOST_STEPS), strict=False)
    for wide, narrow, number in both:
        masks = ours.masks(number, narrow)
        moments.append((sides[0].step(wide, masks), sides[1].step(narrow, masks), ours.step(number, narrow)))
    reference, theirs, mine = (list(side) for side in zip(*moments, strict=True))
    kept = not_null(reference)
    truth, torch_way, jax_way = (way(side, weights, kept) for side in (reference, theirs, mine))
    said = ("losses", "first step", f"{len(moments)} steps")
    arrays = zip(said, jax_way, torch_way, truth, strict=True)
    return max(check_float32(f"{what} in float32", *three) for what, *three in arrays)


def not_null(moments: list[StepSnapshot]) -> dict[str, np.ndarray]:
    """The entries whose gradient in float64 was once more than rounding noise around zero."""
    names = moments[0].gradients
    steepest = {name: np.max([np.abs(moment.gradients[name]) for moment in moments], 0) for name in names}
    noise = NULL_GRADIENT * rms(steepest.values())
    return {name: steep > noise for name, steep in steepest.items()}


def way(moments: list[StepSnapshot], weights: Mapping[str, np.ndarray], kept: Mapping[str, np.ndarray]) -> Way:
    """From the weights that it began with."""

    def moves(after: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.concatenate([(after[name].astype(np.float64) - weights[name])[own] for name, own in kept.items()])

    losses = np.array([moment.loss for moment in moments])
    return Way(losses, moves(moments[0].parameters), moves(moments[-1].parameters))
