"""Recording of a reference, which is a torch model or a JAX model: the first half of a comparison."""

from dataclasses import replace
from typing import Any

import numpy as np

from jaxformer.errors import InputError, ParityError
from jaxformer.parity.attribute.checks import CHECK_NAMES, chosen_checks, needs_of
from jaxformer.parity.numerics.metrics import EXACT, INCONCLUSIVE, error, over
from jaxformer.parity.runs.jax_reference import record_jax
from jaxformer.parity.runs.training_mode import TorchInTraining
from jaxformer.parity.trace.call_sites import CALL, ArrayKey
from jaxformer.parity.trace.coverage import sensitivity
from jaxformer.parity.trace.outputs import Call
from jaxformer.parity.trace.pytree_modules import open_modules
from jaxformer.parity.trace.reference import Reference, Source, Tier, apply, run_torch
from jaxformer.parity.trace.rounding_error import measure_rounding
from jaxformer.parity.trace.selection import Selection
from jaxformer.parity.trace.suspect_operations import torch_draws
from jaxformer.parity.validate import Mode, evaluating, is_jax


def record(
    model: Any, inputs: tuple[np.ndarray, ...], call: Call, *, tier: Tier, checks: tuple[str, ...], mode: Mode = "eval"
) -> Reference:
    """Record all that the checks need of a torch or a JAX model. Raises ParityError if it cannot run."""
    if not is_jax(model):
        return record_torch(model, inputs, call, tier=tier, checks=checks, mode=mode)
    if mode == "train":
        raise InputError("mode is 'train'; a JAX model is recorded in inference mode")
    opened, needs = open_modules(model), needs_of(chosen_checks(checks, tier))
    return record_jax(opened.tree, inputs, opened.given(call), tier=tier, gradients=bool({"gradients", "coverage"} & needs))


def selected(reference: Reference, selection: Selection) -> Reference:
    """Keep the records of the selected calls only. Raises InputError if there are none."""
    calls = {site: record for site, record in reference.calls.items() if site == CALL or selection.has(site.path)}
    return replace(reference, calls=calls, left_out=selection.among(site.path for site in reference.calls if site != CALL))


def is_unsteady(reference: Reference) -> bool:
    """True if the output of two runs that differ in rounding alone is not the same by far."""
    moved = reference.rounding.run.get(ArrayKey(CALL, "output", 0), EXACT)
    return not max(moved.of(reference.calls[CALL].output[0])) <= INCONCLUSIVE


def record_torch(
    torch_model: Any,
    inputs: tuple[np.ndarray, ...],
    call: Call = apply,
    *,
    tier: Tier = "B",
    checks: tuple[str, ...] = CHECK_NAMES,
    mode: Mode = "eval",
) -> Reference:
    """Record all that the checks need of torch: the torch half of `compare`. Raises ParityError if torch cannot run."""
    needs = needs_of(chosen_checks(checks, tier))
    training = TorchInTraining(call, torch_model) if mode == "train" else None
    call = training or call
    with evaluating(torch_model, mode):
        with torch_draws() as draws:
            reference = run_torch(torch_model, inputs, call, tier=tier, watch=True, gradients="gradients" in needs)
        if training is not None:
            source = Source(torch_model, call, training.inside)
            environment = {**reference.environment, "mode": "training"}
            reference = replace(reference, draws=training.draws, source=source, environment=environment)
        reference = replace(reference, rounding=measure_rounding(torch_model, reference, call))
        if training is None and (draws or is_unsteady(reference)):
            again = run_torch(torch_model, inputs, call, gradients=False)  # without gradients rounding may differ
            if over(error(again.output, reference.output), "activation"):
                where = f"(at {draws[0]})" if draws else "with numpy or random"
                raise ParityError(f"torch gives another output each time: it draws random numbers {where}; take them out")
        not_covered = tuple(sensitivity(torch_model, inputs, call)) if "coverage" in needs else None
    return replace(reference, not_covered=not_covered)
