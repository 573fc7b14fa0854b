"""Comparison of a JAX model with a recorded reference: `dump` records, `check` compares."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from jaxformer.convert.rules import Family
from jaxformer.errors import InputError, ParityError
from jaxformer.io.atomic import refuse_existing
from jaxformer.parity.attribute.checks import CHECK_NAMES, chosen_checks, needs_of, run_checks
from jaxformer.parity.attribute.comparison import Comparison, Result
from jaxformer.parity.collect import collected, failing
from jaxformer.parity.large import sparing
from jaxformer.parity.recording import record, selected
from jaxformer.parity.reduce.choose import ReduceTo, requested
from jaxformer.parity.report.report import Report
from jaxformer.parity.report.two_jax import REFERENCE, named_as_jax
from jaxformer.parity.runs.jax_reference import NO_TIER_C
from jaxformer.parity.runs.session import SECONDS
from jaxformer.parity.summary import summary
from jaxformer.parity.summary.check import ByStatistics
from jaxformer.parity.summary.check import results as by_statistics
from jaxformer.parity.summary.summary import Summary
from jaxformer.parity.trace.archive import load, save
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.outputs import Call, Outputs, shapes_in_jax, shapes_of
from jaxformer.parity.trace.pytree_modules import open_modules
from jaxformer.parity.trace.reference import Reference, Tier, apply
from jaxformer.parity.trace.selection import Selection
from jaxformer.parity.trace.torch_hooks import TorchState
from jaxformer.parity.validate import (
    Mode,
    check_of_statistics,
    checked_jax,
    checked_reference,
    checked_seconds,
    is_jax,
)
from jaxformer.validation.fields import check_choice, check_path

Keep = Literal["tensors", "statistics"]
"""Form in which the reference's arrays are kept."""


@sparing
def dump(
    torch_model: Any,
    inputs: tuple[np.ndarray, ...],
    folder: Path | str,
    *,
    call_torch: Call = apply,
    checks: tuple[str, ...] = CHECK_NAMES,
    tier: Tier = "B",
    mode: Mode = "eval",
    names: str = "*",
    every: int = 1,
    keep: Keep = "tensors",
) -> Reference | Summary:
    """Record the torch side of a comparison in a folder, for `check` where torch is not installed.

    A JAX model may stand for torch, as in `compare`, for example to check the same model under another version of JAX.
    `names`, `every` and `keep` are those of `compare`: statistics take some hundred bytes an array, and no weights are kept.
    The folder is written atomically: it appears complete or not at all. Raises InputError if it exists, and ParityError if
    torch cannot be recorded.
    """
    refuse_existing(folder := check_path("folder", folder))
    arrays, outputs = checked_reference(torch_model, inputs, call_torch), Outputs()
    selection, call = Selection(names, every), outputs.of_torch(call_torch)
    check_choice("keep", keep, get_args(Keep))
    if keep == "statistics":
        kept = summary.summarize(torch_model, arrays, call, selection, mode)
        summary.save(kept := replace(kept, outputs=outputs.names), folder)
        return kept
    recorded = record(torch_model, arrays, call, tier=tier, checks=checks, mode=mode)
    reference = selected(replace(recorded, outputs=outputs.names), selection)
    save(reference, folder)
    return reference


def compare_recorded(
    model: Any,
    jax_model: Any,
    inputs: tuple[np.ndarray, ...],
    calls: tuple[Call, Call],
    kept: tuple[Selection, Keep],
    **judged: Any,
) -> Report:
    """Record a reference, and check a JAX model against it; `judged` are the other arguments of `check`."""
    (call, call_jax), (selection, keep), opened = calls, kept, open_modules(jax_model)
    tier, checks = judged["tier"], judged["checks"]
    checked_jax(opened.tree, judged["rules"], call_jax)
    arrays = checked_reference(model, inputs, call)
    outputs = Outputs(lambda: shapes_in_jax(opened.given(call_jax), opened.tree, arrays, in_training=False))
    call = outputs.of_torch(call)
    try:
        if keep == "statistics":
            recorded = summary.summarize(model, arrays, call, selection)
        else:
            recorded = selected(record(model, arrays, call, tier=tier, checks=checks), selection)
        reference = replace(recorded, outputs=outputs.names)
    except (ParityError, SystemExit) as error:
        report = collected(failing(error), tier, [check.name for check in chosen_checks(checks, tier)])
        return named_as_jax(report) if is_jax(model) else report
    report = check(reference, jax_model, call_jax=call_jax, **judged)
    left_out = outputs.left_out()
    return replace(report, not_covered=[*report.not_covered, *(map(named_as_jax, left_out) if is_jax(model) else left_out)])


@sparing
def check(
    reference: Reference | Summary | Path | str,
    jax_model: Any,
    *,
    rules: Family | str | None = None,
    call_jax: Call = apply,
    checks: tuple[str, ...] = CHECK_NAMES,
    tier: Tier = "B",
    search_seconds: float = SECONDS,
    reduce_to: ReduceTo = None,
) -> Report:
    """Compare a JAX model with a recorded reference, or the folder that holds one (see `dump`); torch is not needed."""
    opened = open_modules(jax_model)
    family = checked_jax(opened.tree, rules, call_jax)
    chosen_checks(checks, tier)
    seconds = checked_seconds(search_seconds)
    if isinstance(recorded := loaded(reference), Summary):
        check_of_statistics(checks, tier, reduce_to)
        outputs = Outputs(torch={name: each.shape for name, each in recorded.output.items()})
        compared = ByStatistics(recorded, opened.tree, family, outputs.of_jax(opened.given(call_jax), in_training=False))
        report = collected(by_statistics(compared), "A", ["forward"])
        report = replace(report, not_covered=[*report.not_covered, *outputs.left_out()])
        return named_as_jax(report) if REFERENCE in recorded.environment else report
    if REFERENCE in recorded.environment and tier == "C":
        raise InputError(NO_TIER_C)
    in_training = recorded.draws is not None
    outputs = Outputs(torch=shapes_of(dict(zip(recorded.outputs, recorded.calls[CALL].output, strict=True))))
    reduction = requested(reduce_to, jax_model, call_jax, outputs)
    call_jax = outputs.of_jax(opened.given(call_jax), in_training=in_training)
    chosen = chosen_checks(checks, tier, in_training=in_training)

    def results() -> Iterator[Result]:
        state = TorchState(recorded.weights, recorded.buffers, recorded.tied, recorded.frozen)
        options = {"in_training": in_training, "search_seconds": seconds, "reduction": reduction}
        comparison = Comparison(state, opened.tree, family, call_jax, lambda: recorded, needs_of(chosen), tier, **options)
        yield from run_checks(comparison, chosen)

    report = collected(results(), tier, [check.name for check in chosen])
    report = replace(report, not_covered=[*report.not_covered, *outputs.left_out()])
    return named_as_jax(report) if REFERENCE in recorded.environment else report


def loaded(reference: Reference | Summary | Path | str) -> Reference | Summary:
    """Return a reference, read if a folder holds it."""
    if isinstance(reference, Reference | Summary):
        return reference
    folder = check_path("reference", reference)
    return summary.load(folder) if summary.is_summary(folder) else load(folder)
