"""Models that are too large for a comparison as a whole: nothing of them is copied, and their gradients are left out."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import jax

from jaxformer.errors import InputError
from jaxformer.parity.attribute.checks import CHECK_NAMES, chosen_checks
from jaxformer.parity.numerics.cast_on_use import cast_on_use, casts_on_use
from jaxformer.parity.report.report import Report
from jaxformer.parity.summary.summary import Summary
from jaxformer.parity.trace.archive import ARRAYS
from jaxformer.parity.trace.programs import one_by_one
from jaxformer.parity.trace.reference import Reference
from jaxformer.parity.validate import is_jax
from jaxformer.runtime.memory import free_bytes, gigabytes

T = TypeVar("T", bound=Callable[..., Any])

BYTES = 90
"""Memory in bytes that a comparison takes for each parameter: both sides in float32 and in float64, gradients, programs."""


def sparing(compares: T) -> T:
    """Wrap a function whose first argument is the reference: with a model that would not fit into memory it compares values
    alone, with one weight at a time in float64."""

    @wraps(compares)
    def run(reference: Any, *args: Any, **named: Any) -> Any:
        needed, free = BYTES * parameters_of(reference), free_bytes()
        trains = named.get("isolate") or named.get("mode") == "train" or named.get("training") or named.get("generate")
        if casts_on_use() or trains or free is None or needed <= free:
            return compares(reference, *args, **named)
        why = f"a comparison with gradients takes {gigabytes(needed)} of memory, and {gigabytes(free)} are free"
        wanted = named.get("checks", CHECK_NAMES)
        if not (checks := of_values(wanted)):
            raise InputError(f"checks = {wanted}: {why}; check 'weights', 'forward' and 'local'")
        with one_by_one(), cast_on_use():
            found = compares(reference, *args, **named | {"checks": checks})
        left_out = [f"gradients: {why}"] if checks != wanted and named.get("keep") != "statistics" else []
        return replace(found, not_covered=[*found.not_covered, *left_out]) if isinstance(found, Report) else found

    return run  # type: ignore[return-value]


def of_values(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the checks that need no gradients."""
    chosen = {check.name for check in chosen_checks(names, "A") if not {"gradients", "coverage"} & check.needs}
    return tuple(name for name in names if name in chosen)


def parameters_of(reference: Any) -> int:
    """Number of parameters of a torch model, a JAX model, or a recorded reference in memory or in a folder."""
    if isinstance(reference, Reference):
        return sum(array.size for array in reference.weights.values())
    if isinstance(reference, Summary):
        return sum(math.prod(each.shape) for each in reference.weights.values())
    if isinstance(reference, str | Path):
        arrays = Path(reference) / ARRAYS
        return arrays.stat().st_size // 4 if arrays.is_file() else 0
    if is_jax(reference):
        return sum(getattr(leaf, "size", 0) for leaf in jax.tree.leaves(reference))
    return sum(each.numel() for each in reference.parameters()) if hasattr(reference, "parameters") else 0
