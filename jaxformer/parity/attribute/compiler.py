"""Checks of XLA: whether compiled programs, the user's and the comparison's, compute what their operations compute one by
one."""

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from jaxformer.errors import first_line
from jaxformer.parity.attribute.comparison import Comparison, Result
from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64
from jaxformer.parity.numerics.metrics import FACTOR, UNIT_ROUNDOFF, as_float64, distance, host, over
from jaxformer.parity.report.data import Stage
from jaxformer.parity.runs.end_to_end import propagate
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.programs import compiles, one_by_one
from jaxformer.parity.trace.suspect_operations import Suspect
from jaxformer.runtime.crashes import Child, Outcome, exported, run_exported
from jaxformer.runtime.xla_options import IN_FLAGS, cure

SAME = 1e-11
"""Largest relL2, in float64, between two compilations of one program, or a compiled program and its operations one by one."""
LONGEST = 60.0
"""Seconds that a program may take in addition to ten times its duration with the workaround."""


def compiler(comparison: Comparison) -> Result | None:
    """Compare the user's own jit with the workaround for XLA's bugs; None if there is no difference, or nothing is
    suspected."""
    suspects = comparison.traced.normal_run.suspects
    if not suspects:
        return None
    found = (said for name, program in programs(comparison) if (said := compared(name, program, comparison)))
    if not (first := next(found, "")):
        return None
    judged = f"the port is judged with XLA_FLAGS={IN_FLAGS}, which cures it"
    return Result(Stage("compiler", "warning", f"XLA, not the port: {first}: {in_words(suspects)}; {judged}"))


def in_words(suspects: Sequence[Suspect]) -> str:
    """Describe suspect operations: their modules and lines, and the bug reports that may apply."""
    reports: dict[str, list[str]] = {}
    for suspect in suspects:
        reports.setdefault(suspect.place, []).append(suspect.fault.report)
    return ", ".join(f"{place} ({' or '.join(those)})" for place, those in reports.items())


Program = Callable[[], tuple[bytes, Sequence[np.ndarray]]]
"""Function that returns the exported program and its arguments."""


def programs(comparison: Comparison) -> Iterator[tuple[str, Program]]:
    """Yield the user's call in float32, as it is written, and in float64, as it is compared."""
    reference, traced, candidate = comparison.reference, comparison.traced, comparison.candidate
    run = traced.isolation

    def in_float64() -> tuple[bytes, Sequence[np.ndarray]]:
        with jax_float64(traced.tables):
            return exported(_plain(run.call), run.model, *inputs_float64(reference.inputs))

    yield "float32", lambda: exported(_plain(candidate.call), candidate.model(reference), *reference.inputs)
    yield "float64", in_float64


def _plain(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call so that its output is one array."""
    return lambda model, *inputs: side_by_side(call(model, *inputs))


def compared(name: str, program: Program, comparison: Comparison) -> str:
    """Describe how the program differs from the same program with the workaround; '' if it does not."""
    try:
        code, arrays = program()
    except Exception as error:  # export does not support every program that jit does
        return f"what jax.jit gives in {name} may be wrong, and could not be tried alone ({first_line(error)})"
    plain, cured = outcomes(code, arrays)
    if not isinstance(cured.value, np.ndarray):
        return f"the compiled program in {name} ends: {cured.error}, with and without the cure" if cured.crashed else ""
    if plain.crashed:
        return f"under jax.jit the program ends the process in {name} ({plain.error})"
    off, most = distance(plain.value, cured.value), same(name, comparison)
    if not off <= most:
        return f"under jax.jit the output is off by relL2 {off:.1e} in {name} (rounding explains {most:.0e})"
    return ""


def outcomes(code: bytes, arrays: Sequence[np.ndarray]) -> tuple[Outcome, Outcome]:
    """Run a program as it is and with the workaround, at the same time, each in a process of its own."""
    begun, payloads = time.monotonic(), [pickle.dumps(partial(run_exported, code, arrays, options)) for options in ({}, cure())]
    children = [Child(payload, {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "1"}) for payload in payloads]
    cured = children[1].outcome()
    return children[0].outcome(LONGEST + 10 * (time.monotonic() - begun)), cured


def same(name: str, comparison: Comparison) -> float:
    """Largest relL2 between two compilations of one program in this dtype."""
    reference = comparison.reference
    low = reference.low_precision.get("float32")
    if name == "float64":
        return SAME
    rounding = 0.0 if low is None or host(low).shape != reference.output.shape else distance(host(low), reference.output)
    return FACTOR * rounding + 64 * UNIT_ROUNDOFF


def miscompiled(comparison: Comparison) -> str:
    """Describe where the compiled model is wrong, and by how much; '' if it is right, or the port's own code explains every
    difference."""
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
