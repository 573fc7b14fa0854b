"""The output in float32 and bfloat16, judged by torch's own rounding error."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import InputError, ParityError
from jaxformer.parity.capture.jax_hooks import run_once
from jaxformer.parity.judge.comparison import Comparison, Result
from jaxformer.parity.judge.values import NOTHING_FINITE
from jaxformer.parity.numerics.float64 import cast
from jaxformer.parity.numerics.metrics import check_bfloat16, check_float32
from jaxformer.parity.record.reference import Reference, saying
from jaxformer.parity.report.data import Stage
from jaxformer.parity.run.candidate import Candidate


def float32(comparison: Comparison) -> Result:
    """Tier B."""
    return _judged("float32", check_output32, comparison)


def bfloat16(comparison: Comparison) -> Result:
    """Tier C."""
    return _judged("bfloat16", check_output16, comparison)


def _judged(name: str, check: Callable[[Reference, Candidate], float], comparison: Comparison) -> Result:
    reference = comparison.reference
    if name not in reference.low_precision:
        how = f"dump it with --tier {comparison.tier}, or check a lower tier"
        raise InputError(f"torch's output in {name} was not dumped; {how}")
    if not np.isfinite(reference.output).any():
        raise InputError(NOTHING_FINITE)
    try:
        with saying(f"jax in {name}"):
            ratio = check(reference, comparison.candidate)
        return Result(Stage(name, "equal", f"{ratio:.2f} of what torch's own rounding allows"))
    except ParityError as error:
        if error.__cause__ is not None:
            raise  # it could not be run
        return Result(Stage(name, "different", str(error)))


def check_output32(reference: Reference, candidate: Candidate) -> float:
    """Tier B; returns the ratio of the error to its tolerance."""
    output, _ = run_once(candidate.call, candidate.model(reference), *map(jnp.asarray, reference.inputs), compiler_options=None)
    return check_float32("output in float32", output, reference.low_precision["float32"], reference.output)


def check_output16(reference: Reference, candidate: Candidate) -> float:
    """Tier C; returns the ratio of the error to its tolerance."""
    model = cast(candidate.model(reference), jnp.bfloat16)
    inputs = cast(list(map(jnp.asarray, reference.inputs)), jnp.bfloat16)
    output, _ = run_once(candidate.call, model, *inputs, compiler_options=None)
    return check_bfloat16("output in bfloat16", output, reference.low_precision["bfloat16"], reference.output)
