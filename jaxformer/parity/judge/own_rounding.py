"""Which module rounds more than torch's does: each by itself in bfloat16, on torch's arrays.

An output adds up the rounding of all modules, and hides what one of them loses. So each is judged by three arrays: the one in
float64, and those that torch's own code and jax's make in bfloat16 of the same arrays. A sum or a mean in low precision moves a
whole row by one factor, which disappears among the rounding of its entries: the factors of rows are compared too.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.parity.capture.jax_hooks import RUN_ONCE
from jaxformer.parity.numerics.metrics import as_float64, entry_groups, usual_entries
from jaxformer.parity.record.low_precision import Given, in_bfloat16, own_arrays, rounded
from jaxformer.parity.run.isolated import Mismatch
from jaxformer.parity.run.trace import Traced
from jaxformer.runtime.xla_options import Options

FACTOR, LEAST = 2.0, 3e-5
"""Tier C's: an error may be so many times torch's, and a part of the array more."""
FEW = 8
"""Rows of which nothing is said: their factors are off by chance."""
KEPT: Options = {"xla_allow_excess_precision": False}
"""Every rounding, also between operations that XLA joins."""


def module_that_loses(traced: Traced, low: Any, inputs: tuple[Any, ...]) -> str:
    """'norm loses digits in bfloat16: ...', of the first module whose own error is over its tolerance; '' where none is.

    `low` is the JAX model in bfloat16, with its `inputs`.
    """
    for mismatch, theirs, truth in own_runs(traced, low, inputs):
        for what, ours, torchs, size, count in measures(as_float64(mismatch.jax), theirs, truth):
            if ours > FACTOR * (1 + count**-0.5) * torchs + LEAST * size:
                times = f"{ours / torchs:.1f} times torch's" if torchs else "where torch's is exact"
                says = f"the error of {what} of its {mismatch.what} is {ours / size:.1e}, {times}"
                return f"{mismatch.owner} loses digits in bfloat16: {says}"
    return ""


def own_runs(traced: Traced, low: Any, inputs: tuple[Any, ...]) -> Iterator[tuple[Mismatch, np.ndarray, np.ndarray]]:
    """What each module's own code makes in bfloat16: jax's, torch's, and the true array; none where torch is not at hand."""
    reference = traced.reference
    if (source := reference.source) is None:
        return
    calls = rounded(reference.calls)
    typed = in_bfloat16(source.module, keeps_buffers=reference.keeps_buffers).eval()
    theirs = own_arrays(typed, source.call, reference.inputs, Given(calls, traced.borders))
    options = {**RUN_ONCE, **KEPT}
    isolation = replace(traced.isolation, model=low, inputs=inputs, calls=calls, gradients=False, options=options)
    program = isolation.compiled(traced.opened, gradients=False)
    for each in isolation.judged(program, traced.isolated.orders, dict.fromkeys(traced.opened, True)).mismatches:
        if each.place and each.place.site not in traced.valid and each.place not in traced.opened:
            place = each.place._replace(site=traced.pairs[each.place.site])
            truth = getattr(reference.calls[place.site], place.part)[place.number]
            if place in theirs and truth.dtype.kind == "f" and theirs[place].shape == truth.shape == each.jax.shape:
                yield each, theirs[place], truth


def measures(ours: np.ndarray, theirs: np.ndarray, truth: np.ndarray) -> Iterator[tuple[str, float, float, float, int]]:
    """The errors of both sides beside the size of what they are of, and in how many numbers: of the entries, and of the factors
    of rows. Entries that are huge or not finite are left out."""
    usual = usual_entries(truth, entry_groups(truth)) & np.isfinite(ours) & np.isfinite(theirs)
    if not truth.ndim or not usual.any():
        return
    off, other, true = (np.where(usual, each, 0) for each in (ours - truth, theirs - truth, truth))
    yield "the entries", *(float(np.linalg.norm(each)) for each in (off, other, true)), int(usual.sum())
    square = np.square(true).sum(-1)
    rows = square > 0
    if rows.sum() >= FEW and true.shape[-1] > 1:
        factors = [((each * true).sum(-1)[rows] / square[rows]) for each in (off, other)]
        chance = np.sqrt(np.square(other).sum(-1)[rows] / square[rows] / true.shape[-1])
        least = max(float(np.linalg.norm(each)) for each in (factors[1], chance))
        yield "the factors of rows", float(np.linalg.norm(factors[0])), least, float(rows.sum()) ** 0.5, int(rows.sum())
