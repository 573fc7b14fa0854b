"""Whether a module whose own code differs diverges: not where all that comes out of the model is torch's."""

from collections.abc import Mapping
from dataclasses import replace

from jaxformer.errors import ParityError
from jaxformer.parity.capture.call_sites import CALL, ArrayKey
from jaxformer.parity.judge.other_shapes import with_other_shapes
from jaxformer.parity.numerics.metrics import EXACT, Noise, check_gradients, over
from jaxformer.parity.report.data import Module
from jaxformer.parity.run.trace import Traced


def resolved(traced: Traced, rows: list[Module]) -> list[Module]:
    """The table's rows, in which only differences that change a result are diverging."""
    pairs = zip(traced.normal_run.outputs[CALL], traced.reference.calls[CALL].output, strict=True)
    if any(ours.shape != theirs.shape for ours, theirs in pairs) or any(over(row.propagated, "activation") for row in rows):
        return with_other_shapes(traced, rows)
    if wrong_gradients(traced)[1]:
        return rows
    if len(traced.reference.outputs) > 1 and traced.normal_run.weights is not None:  # each sends back a part: who adds them up?
        rows = [replace(row, gradient=None, local_gradient=None) for row in rows]
    if any(row.gradient is not None and over(row.gradient, "gradient") for row in rows):
        return rows
    return [replace(row, diverging=False, shared=row.shared or row.diverging) for row in rows]


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
