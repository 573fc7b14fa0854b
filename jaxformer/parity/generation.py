"""Tokens that both sides write from the same weights, by functions of the user's own."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family
from jaxformer.errors import InputError
from jaxformer.parity.numerics.float64 import jax_float64, torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.record.reference import Tier
from jaxformer.parity.report.data import Stage
from jaxformer.parity.run.load_weights import joined, load_jax, ready

TIE = 8.0
"""Tiers B and C: two tokens may change places if their logits differ by at most this many times the noise."""


class Written(NamedTuple):
    """What one side wrote."""

    ids: np.ndarray
    """`B T`"""
    logits: np.ndarray | None
    """`B T V`: what each id was chosen by; None where they are not given."""


def compare_generation(
    torch_model: Any,
    jax_model: PyTree,
    torch_generate: Callable[[Any], Any],
    jax_generate: Callable[[Any], Any],
    rules: Family = TWIN,
    *,
    tier: Tier = "A",
) -> Stage:
    """What `torch_generate(model)` and `jax_generate(model)` write with torch's weights: ids `B T`, or (ids, logits `B T V`).

    The models are copies, in evaluation mode, in float64 (tier A), or as they are. In tier A all ids have to be the same. In B
    and C, where the logits are known, an id may differ where the two likeliest are nearly tied; from there on, that row is
    another text and is not compared.
    """
    import torch

    float64 = tier == "A"
    weights = {name: host(tensor).copy() for name, tensor in torch_model.named_parameters()}
    theirs = copy.deepcopy(torch_model).eval()
    with torch.no_grad(), torch_float64() if float64 else nullcontext():
        reference = _written("torch", torch_generate(theirs.double() if float64 else theirs))
    precision = {"A": jax_float64(), "B": jax.default_matmul_precision("highest"), "C": nullcontext()}
    with precision[tier]:
        ours = ready(joined(*load_jax(jax_model, weights, rules, float64=float64)), training=False)
        return compare_written(reference, _written("jax", jax_generate(ours)), tier)


def compare_written(theirs: Written, ours: Written, tier: Tier) -> Stage:
    """Where what both sides wrote begins to differ, if it does."""
    shapes = theirs.ids.shape, ours.ids.shape
    if shapes[0] != shapes[1]:
        return Stage("generate", "different", f"torch wrote ids {list(shapes[0])}, jax {list(shapes[1])}")
    differ = theirs.ids != ours.ids
    rows = np.flatnonzero(differ.any(1)).tolist()
    if not rows:
        return Stage("generate", "equal", f"{shapes[0][0]} rows of {shapes[0][1]} tokens, all the same")
    steps = np.where(differ.any(1), differ.argmax(1), shapes[0][1])
    """Of each row, the first that differs."""
    if theirs.logits is None or ours.logits is None:
        return _difference(theirs, ours, rows[0], steps, "")
    noise = _noise(theirs.logits, ours.logits, steps)
    margins = {row: _margin(theirs.logits[row, steps[row]]) for row in rows}
    not_tied = [row for row in rows if not margins[row] <= TIE * noise]
    row = not_tied[0] if not_tied else rows[0]
    says = f", the two likeliest {margins[row]:.1e} apart; {TIE:g} times the noise is {TIE * noise:.1e}"
    found = _difference(theirs, ours, row, steps, says)
    if tier == "A" or not_tied:
        return found
    return Stage("generate", "equal", f"{len(differ) - len(rows)} of {len(differ)} rows the same, else ties: {found.says}")


def _difference(theirs: Written, ours: Written, row: int, steps: np.ndarray, more: str) -> Stage:
    step = steps[row]
    says = f"row {row}, step {step}: torch wrote {theirs.ids[row, step]}, jax {ours.ids[row, step]}{more}"
    return Stage("generate", "different", says)


def _noise(theirs: np.ndarray, ours: np.ndarray, steps: np.ndarray) -> float:
    """The largest |J - T| of the logits before the ids differ: later, they are of other texts. 0 where infinities differ."""
    before = np.arange(theirs.shape[1]) < steps[:, None]
    t, j = theirs[before].astype(np.float64), ours[before].astype(np.float64)
    finite = np.isfinite(t)
    if not np.array_equal(finite, np.isfinite(j)):
        return 0.0
    return float(np.abs(j[finite] - t[finite]).max(initial=0.0))


def _margin(logits: np.ndarray) -> float:
    """The largest logit minus the second."""
    second, first = np.partition(logits.astype(np.float64), -2)[-2:]
    return float(first - second)


def _written(side: str, value: Any) -> Written:
    ids, logits = map(host, value) if isinstance(value, tuple) and len(value) == 2 else (host(value), None)
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{side}_generate gave {ids.dtype}{list(ids.shape)}; give integer ids `B T`, or (ids, logits `B T V`)")
    if logits is not None and logits.shape[:-1] != ids.shape:
        raise InputError(f"{side}_generate gave logits {list(logits.shape)} for ids {list(ids.shape)}; give `B T V` for `B T`")
    return Written(ids, logits)
