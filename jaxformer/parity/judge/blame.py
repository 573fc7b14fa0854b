"""Whether a module whose own code differs diverges: not where all that comes out of the model is torch's."""

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.capture.call_sites import CALL, ArrayKey
from jaxformer.parity.numerics.axis_order import orders_for, repeated
from jaxformer.parity.numerics.metrics import EXACT, Error, Noise, check_gradients, over
from jaxformer.parity.report.data import Module
from jaxformer.parity.run.pair_modules import holder
from jaxformer.parity.run.trace import Traced


def resolved(traced: Traced, rows: list[Module]) -> list[Module]:
    """The table's rows, in which only differences that change a result are diverging."""
    ours, theirs = traced.normal_run.outputs[CALL][0], traced.reference.output
    if ours.shape != theirs.shape or any(over(row.propagated, "activation") for row in rows):
        unlike = other_shapes(traced, {row.jax for row in rows if row.diverging and not row.cause})
        return [replace(row, **unlike.get(row.torch, {})) for row in rows]
    if any(row.gradient is not None and over(row.gradient, "gradient") for row in rows) or wrong_gradients(traced)[1]:
        return rows
    return [replace(row, diverging=False, shared=row.shared or row.diverging) for row in rows]


def other_shapes(traced: Traced, unexplained: Container[str]) -> dict[str, dict[str, Any]]:
    """What differs in calls whose arrays fit torch's in no order of axes, by torch's name.

    jax's array stays there. Where the code around gives torch's values all the same, or others for a known cause, the two sides
    divide the work otherwise: only calls inside of those of `unexplained` differences count, by jax's name. Modules that are
    called more than once are left out: which call is which is not certain.
    """
    calls, paths = Counter(site.path for site in traced.reference.calls), {site.path for site in traced.pairs}
    found = {}
    for mine, other in ((mine, other) for mine, other in traced.pairs.items() if calls[other.path] == 1):
        if mine != CALL and holder(mine.path, paths - {mine.path}) not in unexplained:
            continue
        ours, theirs = traced.normal_run.outputs[mine][0], traced.reference.calls[other].output[0]
        if not orders_for(theirs.shape, ours.shape) and not repeated(ours, theirs):
            says = f"gives {list(ours.shape)} in jax, {list(theirs.shape)} in torch"
            found[str(other)] = {"local": Error(np.inf, np.inf), "diverging": True, "cause": says}
    return found


def wrong_gradients(traced: Traced) -> tuple[list[str], str]:
    """Names of the null gradients of weights and inputs; and how the first other one differs, '' if none does."""
    if traced.normal_run.weights is None:
        return [], ""
    try:
        return check_gradients(traced.gradients, traced.reference.gradients, roundings(traced)), ""
    except ParityError as error:
        return [], str(error)


def roundings(traced: Traced) -> Mapping[str, Noise]:
    """How far rounding moves torch's gradients."""
    return {name: traced.reference.rounding.run.get(ArrayKey.gradient(name), EXACT) for name in traced.reference.gradients}
