"""Weights and inputs whose gradient stops on one side alone."""

import numpy as np

from jaxformer.parity.numerics.metrics import NULL_GRADIENT, rms
from jaxformer.parity.report.format import count
from jaxformer.parity.report.summarize import say_names
from jaxformer.parity.run.trace import Traced


def stopped_gradients(traced: Traced) -> list[str]:
    """In words: to which of them no gradient comes on one side, where the other has one."""
    ours, theirs = traced.gradients, traced.reference.gradients
    said, noise = [], NULL_GRADIENT * rms(theirs.values())
    for side, other, here, there in (("torch", "jax", theirs, ours), ("jax", "torch", ours, theirs)):
        names = [name for name in theirs if not here[name].any() and np.abs(there[name]).max(initial=0.0) > noise]
        if names:
            listed = ", ".join(say_names(names, [*theirs]))
            said.append(f"no gradient comes to {count(len(names), 'tensor')} in {side}, and it does in {other}: {listed}")
    return said
