"""Why a loss differs at the first step: both sides have the same weights there."""

import numpy as np

from jaxformer.parity.diagnose.by_arrays.values import factor_between, round_number
from jaxformer.parity.diagnose.constants import say
from jaxformer.parity.numerics.metrics import EXPLAINED
from jaxformer.parity.training.trainers import StepSnapshot

SAME = 1e-12


def explain_loss(theirs: StepSnapshot, ours: StepSnapshot) -> str:
    """'jax's loss is 0.75 times torch's, and so are its gradients', or '' where the gradients are no multiple."""
    both = [np.concatenate([side.gradients[name].ravel() for name in theirs.gradients]) for side in (ours, theirs)]
    factor, residual = factor_between(*both)
    if not residual <= EXPLAINED or not np.isfinite(ours.loss):
        return ""
    number = say(round_number(factor))
    if abs(ours.loss - factor * theirs.loss) <= SAME * abs(ours.loss):
        return f"jax's loss is {number} times torch's, and so are its gradients" if abs(factor - 1) > EXPLAINED else ""
    added = say(round_number(ours.loss - factor * theirs.loss))
    if abs(factor - 1) <= EXPLAINED:
        return f"jax's loss is torch's plus {added}, with the same gradients"
    return f"jax's gradients are {number} times torch's; its loss is that many times torch's, plus {added}"
