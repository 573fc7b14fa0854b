"""JAX models whose output changes from run to run: they draw numbers on the host, count their calls, or read uninitialised
arrays."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxformer.parity.numerics.float64 import inputs_float64, jax_float64
from jaxformer.parity.runs.isolated import Isolated
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.call_sites import Site
from jaxformer.parity.trace.host_draws import host_draws
from jaxformer.parity.trace.jax_hooks import run_once
from jaxformer.parity.trace.outputs import side_by_side
from jaxformer.parity.trace.suspect_operations import filled_otherwise


def reads_of_unset(traced: Traced) -> dict[Site, str]:
    """Map jax's calls whose own code reads an uninitialised array to the line that makes it.

    One pass for each line: values that are read change with the fill value; an array that is fully overwritten changes nothing.
    """
    found: dict[Site, str] = {}
    for line in dict.fromkeys(traced.normal_run.unset):
        with jax_float64(traced.tables), filled_otherwise(line):
            again = replace(traced.isolation).run(traced.isolated.orders, corrected=False)
        for site in _changed(traced.isolated, again):
            found.setdefault(site, line)
    return found


def _changed(before: Isolated, after: Isolated) -> list[Site]:
    values = {(each.owner, each.place): each.jax for each in before.mismatches}
    return [
        each.owner
        for each in after.mismatches
        if not np.array_equal(values.get((each.owner, each.place), np.nan), each.jax, equal_nan=True)
    ]


ADDRESS = re.compile(r"0x[0-9a-f]+")


def why_unsteady(traced: Traced) -> str:
    """Explain why two runs differ; '' if they do not.

    It traces the model twice, and runs it twice if something was drawn or the traces differ.
    """
    run = traced.isolation
    with jax_float64(traced.tables):
        model, inputs = run.model, inputs_float64(traced.reference.inputs)

        def fresh() -> Callable[..., Any]:
            """Return a function that JAX has not traced yet."""
            return lambda model, *inputs: side_by_side(run.call(model, *inputs))

        try:
            with host_draws(model, run.call) as places:
                first = jax.make_jaxpr(fresh())(model, *inputs)
            if not places and _is_same(first, jax.make_jaxpr(fresh())(model, *inputs)):
                return ""
            outputs = [np.asarray(run_once(fresh(), model, *inputs)[0]) for _ in range(2)]
        except Exception:  # the run itself reported why
            return ""
    if np.array_equal(*outputs, equal_nan=True):
        return ""
    if places:
        return f"it draws random numbers with numpy or random (at {places[0]})"
    drawn = [] if traced.draws else traced.normal_run.draws
    return f"it draws random numbers by another key (at {drawn[0]})" if drawn else "it counts its calls, or reads a clock"


def _is_same(program: Any, other: Any) -> bool:
    """True if two traces are the same program with the same constants."""
    one, two = (ADDRESS.sub("", str(each.jaxpr)) for each in (program, other))
    return one == two and all(map(np.array_equal, program.consts, other.consts))
