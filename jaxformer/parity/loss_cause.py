"""Cause of a first loss that differs: both losses are compared as outputs of the models, and torch's code is searched."""

import inspect
from dataclasses import replace
from typing import Any

from jaxtyping import PyTree

from jaxformer.convert.rules import Family
from jaxformer.parity.recorded import check
from jaxformer.parity.recording import record_torch
from jaxformer.parity.runs.training_mode import with_state
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.outputs import Outputs
from jaxformer.parity.training.trainers import TrainingSpec

CHECKS = ("forward", "local", "gradients")


def loss_cause(torch_model: Any, jax_model: PyTree, spec: TrainingSpec, rules: Family, search_seconds: float) -> str:
    """Return what the code of jax's loss does otherwise than torch's, on the first batch; '' if that is not found.

    The models are in training mode. A JAX loss that takes a key drops other units than torch's, and is not searched.
    """
    if "key" in inspect.signature(spec.jax_loss).parameters:
        return ""

    def call_torch(model: Any, *tensors: Any) -> Any:
        import torch

        whole = torch.int8, torch.int16, torch.int32
        return spec.torch_loss(model, *(each.long() if each.dtype in whole else each for each in tensors))

    def call_jax(model: Any, *arrays: Any) -> Any:
        return with_state(spec.jax_loss(model, *arrays), model)[0]

    named = Outputs()
    reference = record_torch(
        torch_model, tuple(spec.batches[0]), named.of_torch(call_torch), tier="A", checks=CHECKS, mode="train"
    )
    judged = {"rules": rules, "checks": CHECKS, "tier": "A", "search_seconds": search_seconds}
    report = check(replace(reference, outputs=named.names), jax_model, call_jax=call_jax, **judged)
    if all(each.name != "gradients" for each in report.stages):  # one number alone is given by many changes
        return ""
    return next((module.cause for module in report.diverging if module.name == CALL.path and module.causes), "")
