"""A model's output as the baseline of perturbed inputs, and inputs with other values at some rows and positions."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from jaxformer.parity.numerics.metrics import TOLERANCES, entry_groups, part
from jaxformer.parity.trace.reference import REFUSALS

MARGIN = 10.0
"""A gradient proves coverage if it predicts a change of this many tolerances: smaller ones may be rounding noise, and the
change is tried instead."""
Inputs = Sequence[np.ndarray]


class Baseline:
    """Output of `run(inputs)`, in float64, with which the outputs of changed inputs are compared."""

    def __init__(self, run: Callable[[Inputs], np.ndarray], inputs: Inputs):
        self.run, self.inputs = run, list(inputs)
        self.reference = np.atleast_1d(run(self.inputs))
        usual = part(self.reference, entry_groups(self.reference)[-1])
        self.tolerance = TOLERANCES["activation"][0] * float(np.linalg.norm(usual))

    def changed_rows(self, inputs: Inputs, back: Callable[[np.ndarray], np.ndarray] | None = None) -> np.ndarray:
        """Return the mask of rows (axis 0) of `back(output)` that differ; all rows if the model refuses the inputs."""
        every = np.ones(len(self.reference), bool)
        try:
            output = np.atleast_1d(self.run(inputs))
        except REFUSALS:
            return every
        if output.shape != self.reference.shape:
            return every
        return self.differing(output if back is None else back(output), self.reference)

    def differing(self, output: np.ndarray, reference: np.ndarray) -> np.ndarray:
        """Return the mask of rows in which two outputs of one shape differ by more than the tolerance."""
        same = (output == reference) | (np.isnan(output) & np.isnan(reference))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, output - reference).reshape(len(output), -1)
            return ~(np.linalg.norm(gap, axis=1) <= self.tolerance)

    def proves(self, gradient: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Return where a perturbation as large as `scale` would be over the tolerance."""
        return np.asarray(np.abs(gradient) > MARGIN * self.tolerance / size(scale))


def changed(base: Baseline, i: int, positions: np.ndarray) -> list[np.ndarray]:
    """Return the inputs with other values at these rows and positions of input i: booleans inverted, ids replaced by another id
    that occurs, floats with noise added."""
    array = base.inputs[i]
    where = np.broadcast_to(positions.reshape(spread(array)), array.shape)
    if array.dtype == bool:
        other = ~array
    elif array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # infinite entries
            other = array + size(array) * np.random.default_rng(2).standard_normal(array.shape)
    else:
        values, place = np.unique(array, return_inverse=True)
        other = values[(place.reshape(array.shape) + 1) % len(values)]
    return [np.where(where, other, array) if j == i else given for j, given in enumerate(base.inputs)]


def grid(array: np.ndarray) -> tuple[int, int]:
    """Return the number of rows and positions of an input: axis 0, and axis 1 of floats or the last axis of other dtypes."""
    if array.ndim < 2:
        return array.size, 1
    return array.shape[0], array.shape[1 if array.dtype.kind == "f" else -1]


def spread(array: np.ndarray) -> tuple[int, ...]:
    """Return the shape that broadcasts rows and positions against a whole input."""
    if array.ndim < 2:
        return array.shape
    at = 1 if array.dtype.kind == "f" else array.ndim - 1
    return tuple(n if axis in (0, at) else 1 for axis, n in enumerate(array.shape))


def positions(entries: np.ndarray, array: np.ndarray) -> np.ndarray:
    """Reduce a mask of an input's entries to rows and positions: any entry for floats, all entries for ids."""
    rows, columns = grid(array)
    if array.dtype.kind == "f":
        return np.asarray(entries.reshape(rows, columns, -1).any(-1))
    return np.asarray(entries.reshape(rows, -1, columns).all(1))


def size(array: np.ndarray) -> float:
    """Return the root mean square; 1 for zeros."""
    if not array.size:
        return 1.0
    return float(np.linalg.norm(array.astype(np.float64, copy=False))) / math.sqrt(array.size) or 1.0
