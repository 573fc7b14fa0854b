"""Tokens that both sides write from the same weights, by functions of the user's own."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from jaxformer.convert.families.twin import TWIN
from jaxformer.convert.rules import Family
from jaxformer.errors import InputError
from jaxformer.parity.numerics.float64 import jax_float64, torch_float64
from jaxformer.parity.numerics.metrics import host
from jaxformer.parity.report.data import Stage
from jaxformer.parity.run.load_weights import joined, load_jax, ready

Tier = Literal["A", "B", "C"]

TIE = 8.0
"""Tiers B and C: two tokens whose logits are nearer than this many times the noise may change places."""


class Written(NamedTuple):
    """What one side wrote."""

    ids: np.ndarray
    """`B T`"""
    logits: np.ndarray | None
    """`B T V`: what each id was chosen by; None where they are not known."""


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

    wide = tier == "A"
    weights = {name: host(tensor).copy() for name, tensor in torch_model.named_parameters()}
    theirs = copy.deepcopy(torch_model).eval()
    with torch.no_grad(), torch_float64() if wide else nullcontext():
        reference = _written("torch", torch_generate(theirs.double() if wide else theirs))
    precise = {"A": jax_float64(), "B": jax.default_matmul_precision("highest"), "C": nullcontext()}
    with precise[tier]:
        ours = ready(joined(*load_jax(jax_model, weights, rules, wide=wide)), training=False)
        return judge(reference, _written("jax", jax_generate(ours)), tier)


def judge(theirs: Written, ours: Written, tier: Tier) -> Stage:
    """Where they part, if they do."""
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
        return _parting(theirs, ours, rows[0], steps, "")
    noise = _noise(theirs.logits, ours.logits, steps)
    margins = {row: _margin(theirs.logits[row, steps[row]]) for row in rows}
    over = [row for row in rows if not margins[row] <= TIE * noise]
    row = over[0] if over else rows[0]
    says = f", the two likeliest {margins[row]:.1e} apart; {TIE:g} times the noise is {TIE * noise:.1e}"
    found = _parting(theirs, ours, row, steps, says)
    if tier == "A" or over:
        return found
    return Stage("generate", "equal", f"{len(differ) - len(rows)} of {len(differ)} rows the same, else ties: {found.says}")


def _parting(theirs: Written, ours: Written, row: int, steps: np.ndarray, more: str) -> Stage:
    step = steps[row]
    says = f"row {row}, step {step}: torch wrote {theirs.ids[row, step]}, jax {ours.ids[row, step]}{more}"
    return Stage("generate", "different", says)


def _noise(theirs: np.ndarray, ours: np.ndarray, steps: np.ndarray) -> float:
    """The largest |J - T| before the rows part: later, they are logits of other texts. 0 where infinities do not agree."""
    before = np.arange(theirs.shape[1]) < steps[:, None]
    t, j = theirs[before].astype(np.float64), ours[before].astype(np.float64)
    finite = np.isfinite(t)
    if not np.array_equal(finite, np.isfinite(j)):
        return 0.0
    return float(np.abs(j[finite] - t[finite]).max(initial=0.0))


def _margin(logits: np.ndarray) -> float:
    """How far the likeliest is ahead of the next."""
    second, first = np.partition(logits.astype(np.float64), -2)[-2:]
    return float(first - second)


def _written(side: str, value: Any) -> Written:
    ids, logits = map(host, value) if isinstance(value, tuple) and len(value) == 2 else (host(value), None)
    if ids.ndim != 2 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{side}_generate gave {ids.dtype}{list(ids.shape)}; give integer ids `B T`, or (ids, logits `B T V`)")
    if logits is not None and logits.shape[:-1] != ids.shape:
        raise InputError(f"{side}_generate gave logits {list(logits.shape)} for ids {list(ids.shape)}; give `B T V` for `B T`")
    return Written(ids, logits)
