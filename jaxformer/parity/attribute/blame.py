"""Blame: whether a module whose own code differs diverges, and rows of padding, whose difference is a note."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.attribute.other_shapes import with_other_shapes
from jaxformer.parity.numerics.metrics import EXACT, Noise, check_gradients, over
from jaxformer.parity.report.data import Module
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import CALL, ArrayKey
from jaxformer.parity.trace.reference import Reference


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


def with_trained_padding(traced: Traced) -> Traced:
    """The same with these rows' gradients as they are without `padding_idx`, if all of jax's gradients are torch's then."""
    if not traced.reference.padding or not wrong_gradients(traced)[1]:
        return traced
    rows, gradients = without_padding(traced.reference)
    instead = replace(traced, reference=replace(traced.reference, gradients=gradients), padding=rows)
    return traced if wrong_gradients(instead)[1] else instead


def without_padding(reference: Reference) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Which rows get no gradient where they are looked up, and all gradients as if they got it."""
    rows, gradients = dict[str, None](), {**reference.gradients}
    for site, record in reference.calls.items():
        name = f"{site.path}.weight".removeprefix(".")
        name = reference.tied.get(name, name)
        if site.path in reference.padding and name in gradients and (sent := record.output_gradients[0]) is not None:
            row, table = reference.padding[site.path], gradients[name].copy()
            table[row] += sent[record.inputs[0] == row].sum(0)
            rows[f"row {row} of {name}"], gradients[name] = None, table
    return tuple(rows), gradients


def said(traced: Traced) -> str:
    """What the check of gradients says of them; '' where there are none."""
    why = "which torch's padding_idx leaves as it is: a difference in training alone"
    return f"; jax trains {', '.join(traced.padding)}, {why}" if traced.padding else ""
