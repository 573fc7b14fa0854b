"""The output in float32 and bfloat16, judged by torch's own rounding error."""

import jax.numpy as jnp

from jaxformer.parity.capture.jax_hooks import run_once
from jaxformer.parity.numerics.float64 import cast
from jaxformer.parity.numerics.metrics import check_bfloat16, check_float32
from jaxformer.parity.record.reference import Reference
from jaxformer.parity.run.candidate import Candidate


def check_output32(reference: Reference, candidate: Candidate) -> float:
    """Tier B; returns the ratio to its line."""
    output, _ = run_once(candidate.call, candidate.model(reference), *map(jnp.asarray, reference.inputs), compiler_options=None)
    return check_float32("output in float32", output, reference.low_precision["float32"], reference.output)


def check_output16(reference: Reference, candidate: Candidate) -> float:
    """Tier C; returns the ratio to its line."""
    model = cast(candidate.model(reference), jnp.bfloat16)
    inputs = cast(list(map(jnp.asarray, reference.inputs)), jnp.bfloat16)
    output, _ = run_once(candidate.call, model, *inputs, compiler_options=None)
    return check_bfloat16("output in bfloat16", output, reference.low_precision["bfloat16"], reference.output)
