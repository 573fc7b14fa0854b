"""Coverage of a JAX model's inputs: rows and positions that its output does not depend on."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxformer.parity.trace.baseline import Baseline, Inputs, grid, positions
from jaxformer.parity.trace.call_records import Record
from jaxformer.parity.trace.coverage import uncovered_inputs
from jaxformer.parity.trace.outputs import Call, several, side_by_side
from jaxformer.runtime.xla_options import exact


def unread_inputs(
    model: Any, call: Call, inputs: Inputs, records: Iterable[Record], by_input: Mapping[str, np.ndarray]
) -> list[str]:
    """Describe rows and positions of the inputs whose change leaves the output of `call(model, *inputs)` as it is, in float64.

    Gradients of float inputs, `by_input`, and of rows looked up in a table, among the `records`, prove most positions covered;
    a forward pass is made for each of the others. Returns nothing if no number of the output is finite.
    """
    run = jax.jit(
        lambda model, *arrays: side_by_side(several(call(model, *arrays), "call_torch", call)), compiler_options=exact()
    )
    base = Baseline(lambda arrays: np.asarray(run(model, *arrays)), inputs)
    if not np.isfinite(base.reference).any():
        return []
    records, found = [*records], list[str]()
    for i, array in enumerate(base.inputs):
        covered = np.zeros(grid(array), bool)
        if (gradient := by_input.get(f"input {i}")) is not None:
            covered |= positions(base.proves(gradient, array), array)
        for rows, back in lookups(array, records):
            covered |= positions(np.asarray(base.proves(back, rows).any(-1)), array)
        found += uncovered_inputs(base, i, covered)
    return found


def lookups(ids: np.ndarray, records: Iterable[Record]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the output and its gradient for each call that gives every one of the `ids` a row of its own."""
    values, first, place = np.unique(ids, return_index=True, return_inverse=True)
    if ids.dtype.kind not in "iu" or len(values) < 2:
        return
    for record in records:
        if len(record.inputs) != 1 or len(record.output) != 1 or not np.array_equal(record.inputs[0], ids):
            continue
        rows, back = record.output[0], (record.output_gradients or (None,))[0]
        if rows.shape[:-1] == ids.shape and back is not None:
            flat = rows.reshape(ids.size, -1)
            if np.array_equal(flat, flat[first[place.ravel()]]) and len(np.unique(flat[first], axis=0)) == len(values):
                yield rows, back
