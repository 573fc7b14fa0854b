"""Blame: whether a module whose own code differs counts as diverging; and rows of padding, whose difference is only a note."""

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
    """Return the table's rows with `diverging` only where a difference changes a result."""
    pairs = zip(traced.normal_run.outputs[CALL], traced.reference.calls[CALL].output, strict=True)
    if any(ours.shape != theirs.shape for ours, theirs in pairs) or any(over(row.propagated, "activation") for row in rows):
        return with_other_shapes(traced, rows)
    if wrong_gradients(traced)[1]:
        return rows
    if len(traced.reference.outputs) > 1 and traced.normal_run.weights is not None:  # each sends back a part of the sum
        rows = [replace(row, gradient=None, local_gradient=None) for row in rows]
    if any(row.gradient is not None and over(row.gradient, "gradient") for row in rows):
        return rows
    return [replace(row, diverging=False, shared=row.shared or row.diverging) for row in rows]


def wrong_gradients(traced: Traced) -> tuple[list[str], str]:
    """Names of the null gradients of weights and inputs, and a message about the first other one that differs, or ''."""
    if traced.normal_run.weights is None:
        return [], ""
    try:
        return check_gradients(traced.gradients, traced.reference.gradients, roundings(traced)), ""
    except ParityError as error:
        return [], str(error)


def roundings(traced: Traced) -> Mapping[str, Noise]:
    """Perturbation of torch's gradients by rounding."""
    return {name: traced.reference.rounding.run.get(ArrayKey.gradient(name), EXACT) for name in traced.reference.gradients}


def with_trained_padding(traced: Traced) -> Traced:
    """Compare with the gradients that the rows of padding would have without `padding_idx`, if all of jax's then equal
    torch's."""
    if not traced.reference.padding or not wrong_gradients(traced)[1]:
        return traced
    rows, gradients = without_padding(traced.reference)
    instead = replace(traced, reference=replace(traced.reference, gradients=gradients), padding=rows)
    return traced if wrong_gradients(instead)[1] else instead


def without_padding(reference: Reference) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Rows that get no gradient when they are looked up, and all gradients as if they got it."""
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
    """Note on trained rows of padding for the check of gradients; '' if there are none."""
    why = "which torch's padding_idx leaves as it is: a difference in training alone"
    return f"; jax trains {', '.join(traced.padding)}, {why}" if traced.padding else ""
