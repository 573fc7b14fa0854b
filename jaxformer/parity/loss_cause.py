"""Cause of a first loss that differs: both losses are compared as outputs of the models, and torch's code is searched."""

import inspect
import math
from dataclasses import replace
from typing import Any

from jaxtyping import PyTree

from jaxformer.convert.rules import Family
from jaxformer.parity.recorded import check
from jaxformer.parity.recording import record_torch
from jaxformer.parity.report.data import Cause
from jaxformer.parity.runs.training_mode import with_state
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.outputs import Outputs
from jaxformer.parity.training.trainers import TrainingSpec

CHECKS = ("forward", "local", "gradients")
MOST_BATCHES, NEAR = 2, 1e-6
"""Number of batches that a cause has to explain, and the relative tolerance of its number among them."""


def loss_cause(torch_model: Any, jax_model: PyTree, spec: TrainingSpec, rules: Family, search_seconds: float) -> str:
    """Return what the code of jax's loss does otherwise than torch's; '' if that is not found.

    The models are in training mode. What explains the first batch has to explain the second too. A JAX loss that takes a key
    drops other units than torch's, and is not searched.
    """
    if "key" in inspect.signature(spec.jax_loss).parameters:
        return ""

    def call_torch(model: Any, *tensors: Any) -> Any:
        import torch

        whole = torch.int8, torch.int16, torch.int32
        return spec.torch_loss(model, *(each.long() if each.dtype in whole else each for each in tensors))

    def call_jax(model: Any, *arrays: Any) -> Any:
        return with_state(spec.jax_loss(model, *arrays), model)[0]

    def causes_of(batch: Any) -> list[Cause]:
        named = Outputs()
        reference = record_torch(torch_model, tuple(batch), named.of_torch(call_torch), tier="A", checks=CHECKS, mode="train")
        judged = {"rules": rules, "checks": CHECKS, "tier": "A", "search_seconds": search_seconds}
        report = check(replace(reference, outputs=named.names), jax_model, call_jax=call_jax, **judged)
        if all(each.name != "gradients" for each in report.stages):  # one number alone is given by many changes
            return []
        return next((module.causes for module in report.diverging if module.name == CALL.path), [])

    found = causes_of(spec.batches[0])
    for batch in spec.batches[1:MOST_BATCHES] if found else ():
        others = causes_of(batch)
        found = [cause for cause in found if any(are_alike(cause, other) for other in others)]
    residual = f" (residual {found[0].residual:.0e})" if found and found[0].residual is not None else ""
    return ", or the same: ".join(cause.says for cause in found) + residual


def are_alike(one: Cause, other: Cause) -> bool:
    """True for the same change of the same code; a number that was solved for has to be the same too."""
    alike = (one.change, one.targets) == (other.change, other.targets)
    return alike and (one.value == other.value or math.isclose(one.value or 0.0, other.value or 0.0, rel_tol=NEAR))
