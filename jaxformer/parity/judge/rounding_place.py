"""Where an output that is too far off in float32 alone lost its digits: each module by itself on torch's arrays, in float32."""

from collections.abc import Iterable
from dataclasses import replace

import jax
import numpy as np

from jaxformer.parity.diagnose.by_arrays.norms import fast_variance
from jaxformer.parity.diagnose.evidence import evidence_of
from jaxformer.parity.diagnose.explainers import attempt
from jaxformer.parity.numerics.metrics import UNIT_ROUNDOFF, distance
from jaxformer.parity.run.isolated import Mismatch
from jaxformer.parity.run.trace import Traced

APART = 10.0
"""Digits are lost in a module whose own error is so many times that of half of the modules."""


def rounding_place(traced: Traced) -> str:
    """'; digits are lost in norm, which is off by 269 times float32's rounding, half of the modules by at most 1'; '' where no
    module stands out."""
    return attempt("where digits are lost", lambda: _said(traced, _alone(traced))) or ""


def _alone(traced: Traced) -> Iterable[Mismatch]:
    """What each module makes of torch's arrays, in float32."""
    isolation = replace(traced.isolation, model=traced.model, inputs=traced.reference.inputs, gradients=False)
    with jax.default_matmul_precision("highest"):
        found = isolation.run(traced.isolated.orders, corrected=False).mismatches
    return (each for each in found if each.torch.dtype.kind == "f" and each.owner not in traced.valid)


def _said(traced: Traced, alone: Iterable[Mismatch]) -> str:
    off: dict[str, tuple[float, Mismatch]] = {}
    for each in alone:
        roundings, owner = distance(each.jax, each.torch) / UNIT_ROUNDOFF, str(each.owner)
        if np.isfinite(roundings) and roundings >= off.get(owner, (0.0, each))[0]:
            off[owner] = roundings, each
    if not off:
        return ""
    half = float(np.median([roundings for roundings, _ in off.values()]))
    losing = {owner: pair for owner, pair in off.items() if pair[0] > APART * max(half, 1.0)}
    if not losing:
        return ""
    owner, (roundings, worst) = max(losing.items(), key=lambda item: item[1][0])
    more = f", as in {len(losing) - 1} more" if len(losing) > 1 else ""
    cause = fast_variance(evidence_of(traced, worst), worst.jax, worst.torch, UNIT_ROUNDOFF)
    said = f"digits are lost in {owner}{more}: it is off by {roundings:,.0f} times float32's rounding, half of the modules by"
    return f"; {said} at most {half:,.1f}" + f"; {cause}" * bool(cause)
