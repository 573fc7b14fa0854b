"""Explain an array that a later child of the same module gives."""

from collections.abc import Mapping

import numpy as np

from jaxformer.parity.diagnose.diagnosis import Candidate, plain
from jaxformer.parity.diagnose.evidence import Difference
from jaxformer.parity.diagnose.mutation import Change
from jaxformer.parity.numerics.metrics import EXPLAINED, distance

LATER = Change("calls.later", "goes on with {other}, which torch runs later", "goes on with {usual}")


def explain_later(difference: Difference) -> Candidate | None:
    """Explain jax's array by what a later child gives: JAX runs the children in another order."""
    usual = named(difference.torch, difference.evidence.before)
    other = named(difference.jax, difference.evidence.later)
    if usual is None or other is None:
        return None
    return plain(LATER, distance(difference.evidence.later[other], difference.jax), usual=usual, other=other)


def named(array: np.ndarray, among: Mapping[str, np.ndarray]) -> str | None:
    """Return the name of the first of these arrays that is equal up to rounding; None if none is."""
    alike = (name for name, each in among.items() if each.shape == array.shape and distance(each, array) <= EXPLAINED)
    return next(alike, None)
