"""Cause of a first loss that differs: both losses are compared as outputs of the models, and torch's code is searched."""

import inspect
from dataclasses import replace
from typing import Any

from jaxtyping import PyTree

from jaxformer.convert.rules import Family
from jaxformer.parity.attribute.checks import chosen_checks, needs_of, run_checks
from jaxformer.parity.attribute.comparison import Comparison
from jaxformer.parity.collect import collected
from jaxformer.parity.recording import record_torch
from jaxformer.parity.runs.training_mode import with_state
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.outputs import Outputs, shapes_of
from jaxformer.parity.trace.torch_hooks import torch_state
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

    batch, named = tuple(spec.batches[0]), Outputs()
    reference = record_torch(torch_model, batch, named.of_torch(call_torch), tier="A", checks=CHECKS, mode="train")
    reference = replace(reference, outputs=named.names)
    given = Outputs(torch=shapes_of(dict(zip(reference.outputs, reference.calls[CALL].output, strict=True))))
    chosen = chosen_checks(CHECKS, "A", in_training=True)
    comparison = Comparison(
        torch_state(torch_model),
        jax_model,
        rules,
        given.of_jax(call_jax, in_training=True),
        lambda: reference,
        needs_of(chosen),
        "A",
        in_training=True,
        search_seconds=search_seconds,
    )
    report = collected(run_checks(comparison, chosen), "A", [check.name for check in chosen])
    return next((module.cause for module in report.diverging if module.name == CALL.path and module.causes), "")
