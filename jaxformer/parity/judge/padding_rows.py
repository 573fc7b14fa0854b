"""Rows of padding that jax trains and torch's `padding_idx` leaves as they are: no difference where nothing is trained."""

from dataclasses import replace

import numpy as np

from jaxformer.parity.judge.blame import wrong_gradients
from jaxformer.parity.record.reference import Reference
from jaxformer.parity.run.trace import Traced


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
