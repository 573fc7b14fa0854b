"""Rounding: tolerances relaxed to torch's own rounding error, and modules that round more than torch's do."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from jaxformer.parity.numerics.metrics import (
    INCONCLUSIVE,
    TOLERANCES,
    Error,
    Kind,
    as_float64,
    entry_groups,
    over,
    usual_entries,
)
from jaxformer.parity.runs.isolated import Mismatch
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.low_precision import Given, in_bfloat16, own_arrays, rounded
from jaxformer.parity.trace.programs import RUN_ONCE
from jaxformer.runtime.xla_options import Options


class Relaxed(NamedTuple):
    """An array over tier A's tolerance that counts as equal, because torch's own rounding may explain the error."""

    name: str
    moved: float
    """Perturbation by rounding alone: relL2 or max/rms."""
    tolerance: float
    """Relaxed tolerance, in place of tier A's."""


def is_relaxed(found: Error, kind: Kind) -> bool:
    """True if an error is within its tolerance only because of torch's rounding."""
    return over(replace(found, rounding=0.0, rounding_peak=0.0), kind) and not over(found, kind)


def relaxed_tolerances(found: Iterable[tuple[str, Error | None]], kind: Kind) -> list[Relaxed]:
    """List all relaxed tolerances, the largest first."""
    relaxed = []
    for name, error in found:
        if error is not None and is_relaxed(error, kind):
            by_size = error.relative > TOLERANCES[kind][0]
            moved = error.rounding if by_size else error.rounding_peak
            relaxed.append(Relaxed(name, moved, error.allowed(kind)[0 if by_size else 1]))
    return sorted(relaxed, key=lambda each: -each.tolerance)


def note(found: list[Relaxed]) -> str:
    """Note that a stage adds if tolerances were relaxed, else ''."""
    if not found:
        return ""
    name, moved, tolerance = found[0]
    more = f", and {len(found) - 1} more likewise" if len(found) > 1 else ""
    return f"; ill-conditioned: torch's own rounding moves {name} by {moved:.1e}, judged against {tolerance:.1e}{more}"


def inconclusive(found: Iterable[Relaxed]) -> list[str]:
    """Arrays that rounding moves too far to be judged."""
    return [f"{name} (torch's own rounding moves it by {moved:.0e})" for name, moved, _ in found if not moved <= INCONCLUSIVE]


FACTOR, LEAST = 2.0, 3e-5
"""Tolerance of tier C: the factor by which an error may exceed torch's, and a share of the array's size in addition."""
FEW = 8
"""Number of rows below which row factors are not judged: they vary by chance."""
KEPT: Options = {"xla_allow_excess_precision": False}
"""XLA options that keep every rounding, also between operations that XLA fuses."""


def module_that_loses(traced: Traced, low: Any, inputs: tuple[Any, ...]) -> str:
    """Describe the first module whose own error is over its tolerance, as 'norm loses digits in bfloat16: ...', or return ''.

    `low` is the JAX model in bfloat16, with its `inputs`.
    """
    for mismatch, torch, truth in own_runs(traced, low, inputs):
        for what, jax, torchs, size, count in measures(as_float64(mismatch.jax), torch, truth):
            if jax > FACTOR * (1 + count**-0.5) * torchs + LEAST * size:
                times = f"{jax / torchs:.1f} times torch's" if torchs else "where torch's is exact"
                says = f"the error of {what} of its {mismatch.what} is {jax / size:.1e}, {times}"
                return f"{mismatch.owner} loses digits in bfloat16: {says}"
    return ""


def own_runs(traced: Traced, low: Any, inputs: tuple[Any, ...]) -> Iterator[tuple[Mismatch, np.ndarray, np.ndarray]]:
    """Yield what each module's own code makes in bfloat16: jax's and torch's array and the true one; nothing without torch."""
    reference = traced.reference
    if (source := reference.source) is None:
        return
    calls = rounded(reference.calls)
    typed = in_bfloat16(source.module, keeps_buffers=reference.keeps_buffers).eval()
    torch = own_arrays(typed, source.call, reference.inputs, Given(calls, traced.boundaries))
    options = {**RUN_ONCE, **KEPT}
    isolation = replace(traced.isolation, load=lambda: low, inputs=inputs, calls=calls, gradients=False, options=options)
    program = isolation.compiled(traced.opened, gradients=False)
    for each in isolation.judged(program, traced.isolated.orders, dict.fromkeys(traced.opened, True)).mismatches:
        if each.place and each.place.site not in traced.valid and each.place not in traced.opened:
            place = each.place._replace(site=traced.pairs[each.place.site])
            truth = getattr(reference.calls[place.site], place.part)[place.number]
            if place in torch and truth.dtype.kind == "f" and torch[place].shape == truth.shape == each.jax.shape:
                yield each, torch[place], truth


def measures(jax: np.ndarray, torch: np.ndarray, truth: np.ndarray) -> Iterator[tuple[str, float, float, float, int]]:
    """Yield both sides' errors beside the size of the true values and their count: of the entries, and of the factors of rows.

    Entries that are huge or not finite are left out.
    """
    usual = usual_entries(truth, entry_groups(truth)) & np.isfinite(jax) & np.isfinite(torch)
    if not truth.ndim or not usual.any():
        return
    off, other, true = (np.where(usual, each, 0) for each in (jax - truth, torch - truth, truth))
    ours_off, theirs_off, size = (float(np.linalg.norm(each)) for each in (off, other, true))
    yield "the entries", ours_off, theirs_off, size, int(usual.sum())
    square = np.square(true).sum(-1)
    rows = square > 0
    if rows.sum() >= FEW and true.shape[-1] > 1:
        factors = [((each * true).sum(-1)[rows] / square[rows]) for each in (off, other)]
        chance = np.sqrt(np.square(other).sum(-1)[rows] / square[rows] / true.shape[-1])
        least = max(float(np.linalg.norm(each)) for each in (factors[1], chance))
        yield "the factors of rows", float(np.linalg.norm(factors[0])), least, float(rows.sum()) ** 0.5, int(rows.sum())
