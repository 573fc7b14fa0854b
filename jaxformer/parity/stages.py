"""What each check says of two runs in float64: equal, different, or failed where torch gives nothing to compare."""

from typing import Any

import numpy as np

from jaxformer.convert.rules import summed, to_torch
from jaxformer.errors import ParityError
from jaxformer.parity.measure import LINES, check_gradients
from jaxformer.parity.modules import Traced, over
from jaxformer.parity.report import Module, Stage
from jaxformer.parity.watch import CALL

NOTHING_FINITE = "torch's output holds no finite number; give other inputs, or other weights"


def forward_stage(traced: Traced, rows: list[Module]) -> Stage:
    """The output, and where the first difference begins."""
    output = next(row for row in rows if row.jax == CALL.path).propagated
    (ours,), (theirs,) = traced.ours.outputs[CALL], traced.reference.calls[CALL].output
    if ours.shape != theirs.shape:
        return Stage("forward", "different", f"the output is {list(ours.shape)} in jax and {list(theirs.shape)} in torch")
    if not np.isfinite(theirs).any():
        return Stage("forward", "failed", NOTHING_FINITE)
    if not any(over(row.propagated, "activation") for row in rows):
        return Stage("forward", "equal", f"relL2 {output.relative:.1e} (line {LINES['activation'][0]:.0e})")
    return Stage("forward", "different", f"output {output.relative:.1e}; {_first(rows)}")


def local_stage(traced: Traced, rows: list[Module]) -> Stage:
    """How many modules' own code differs."""
    guilty = sum(over(row.local, "activation") for row in rows)
    if not guilty and not np.isfinite(traced.reference.output).any():
        return Stage("local", "failed", NOTHING_FINITE)
    return Stage("local", "different" if guilty else "equal", f"{guilty} of {len(rows) - 1} modules guilty")


def gradients_stage(traced: Traced, rows: list[Module]) -> tuple[Stage, dict[str, Any]]:
    """Of every weight and every float input."""
    ours = summed(to_torch(traced.ours.weights, traced.rules), traced.rules)
    ours |= {f"input {i}": array for i, array in traced.ours.inputs.items()}
    ours = {name: ours[name] for name in traced.reference.gradients}
    blind = [name for name, array in traced.reference.gradients.items() if not np.isfinite(array).all()]
    if blind and not any(row.guilty for row in rows):
        says = f"torch's own are NaN or infinite in {len(blind)} of {len(ours)} tensors, first {blind[0]}"
        return Stage("gradients", "failed", f"{says}; give inputs and weights without, or leave the gradients out"), {}
    try:
        nulls = check_gradients(ours, traced.reference.gradients)
    except ParityError as error:
        return Stage("gradients", "different", f"{error}; {_first(rows)}"), {}
    return Stage("gradients", "equal", f"{len(ours)} tensors, {len(nulls)} null"), {"unnoticed": nulls}


def activation_gradients_stage(traced: Traced, rows: list[Module]) -> Stage:
    """Of what every module gives, along the normal run; and of what each one sends back on torch's values.

    Gradients that are equal where values are not are no proof: a module whose values differ is different here too.
    """
    local = [row for row in rows if row.local_gradient is not None and over(row.local_gradient, "gradient")]
    propagated = [row for row in rows if row.gradient is not None and over(row.gradient, "gradient")]
    blind = [
        site
        for site, record in traced.reference.calls.items()
        if not all(np.isfinite(array).all() for array in record.output_gradients if array is not None)
    ]
    if blind and not any(row.guilty for row in rows):
        says = f"torch's own are NaN or infinite in {len(blind)} calls of modules, first {blind[0]}"
        says += "; give inputs and weights without, or leave the activation gradients out"
        return Stage("activation gradients", "failed", says)
    if not any(row.guilty for row in rows) and not propagated:
        peak = max((row.gradient.peak for row in rows if row.gradient is not None), default=0.0)
        return Stage("activation gradients", "equal", f"max/rms {peak:.1e} (line {LINES['gradient'][1]:.0e})")
    says = f"{len(local)} of {len(rows) - 1} modules guilty" if local else _first(rows)
    return Stage("activation gradients", "different", says)


def _first(rows: list[Module]) -> str:
    """The earliest module in torch's order whose own code differs."""
    for row in rows:
        if over(row.local, "activation"):
            return f"first at {row.jax or 'the model'} (local {row.local.relative:.1e}, line {LINES['activation'][0]:.0e})"
        if row.local_gradient is not None and over(row.local_gradient, "gradient"):
            line = LINES["gradient"][1]
            return f"first at {row.jax or 'the model'} (local gradient {row.local_gradient.peak:.1e}, line {line:.0e})"
    return "no module's own code differs: what is between them does"
