"""Whether a compiled program of the comparison gives something else than its operations one by one: then XLA is at fault, in a
way that no report in the table tells, and the port is judged by its operations."""

import numpy as np

from jaxformer.parity.capture.call_sites import CALL
from jaxformer.parity.capture.jax_hooks import compiles, one_by_one
from jaxformer.parity.judge.comparison import Comparison
from jaxformer.parity.numerics.float64 import jax_float64
from jaxformer.parity.numerics.metrics import as_float64, distance, over
from jaxformer.parity.run.end_to_end import propagate

SAME = 1e-11
"""The largest relL2 between a compiled program and its operations one by one, in float64."""


def miscompiled(comparison: Comparison) -> str:
    """Where and how far the compiled model is off, in words; '' where it is not, or where the port's own code explains all."""
    if not compiles() or not any(row.diverging and not row.cause and over(row.local, "activation") for row in comparison.rows):
        return ""
    traced = comparison.traced
    run, compiled = traced.isolation, traced.normal_run.outputs
    with jax_float64(traced.tables), one_by_one():
        alone = propagate(run.model, run.call, run.inputs, None).outputs
    for site, arrays in compiled.items():
        for mine, other in zip(arrays, alone.get(site, ()), strict=False):
            if np.issubdtype(mine.dtype, np.inexact) and not (off := distance(as_float64(mine), as_float64(other))) <= SAME:
                where = "the output" if site == CALL else str(site)
                return f"compiled, {where} is off by relL2 {off:.1e} from the same operations one by one"
    return ""
