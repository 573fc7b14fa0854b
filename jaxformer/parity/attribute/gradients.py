"""Checks of gradients in float64: of every weight and input, and of every module's output."""

from dataclasses import replace

import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.attribute.blame import roundings, said, wrong_gradients
from jaxformer.parity.attribute.comparison import Comparison, Result
from jaxformer.parity.attribute.notes import count_diverging, first_diverging
from jaxformer.parity.attribute.rounding import inconclusive, note, relaxed_tolerances
from jaxformer.parity.numerics.metrics import NULL_GRADIENT, TOLERANCES, error, over, rms
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.summarize import part_of, say_names
from jaxformer.parity.report.text import count
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.trace.source_lines import line_of


def stopped_gradients(traced: Traced) -> list[str]:
    """Messages about tensors that get no gradient on one side while the other side has one."""
    ours, theirs = traced.gradients, traced.reference.gradients
    said, noise = [], NULL_GRADIENT * rms(theirs.values())
    for side, other, here, there in (("torch", "jax", theirs, ours), ("jax", "torch", ours, theirs)):
        names = [name for name in theirs if not here[name].any() and np.abs(there[name]).max(initial=0.0) > noise]
        if names:
            listed = ", ".join(say_names(names, [*theirs]))
            said.append(f"no gradient comes to {count(len(names), 'tensor')} in {side}, and it does in {other}: {listed}")
    return said


def gradients(comparison: Comparison) -> Result:
    """Check the gradients of every weight and every float input; null gradients cannot be judged."""
    if comparison.traced.no_gradients:
        return not_taken(comparison, "gradients", comparison.traced.no_gradients)
    traced, rows, alone = comparison.traced, comparison.rows, list(comparison.trained_alone.values())
    ours, theirs = traced.gradients, traced.reference.gradients
    not_finite = [name for name, array in theirs.items() if not np.isfinite(array).all()]
    if not_finite and not any(row.diverging for row in rows):
        if part := comparison.on_finite_rows:
            return without_rows(gradients(part), comparison)
        says = f"torch's own are NaN or infinite in {len(not_finite)} of {len(ours)} tensors, first {not_finite[0]}"
        return Result(Stage("gradients", "failed", f"{says}; give inputs and weights without, or leave the gradients out"), [])
    nulls, wrong = wrong_gradients(traced)
    if wrong:
        told = *alone, wrong, *stopped_gradients(traced), first_diverging(rows)
        return Result(Stage("gradients", "different", "; ".join(told)), [])
    if alone:
        return Result(Stage("gradients", "different", f"{'; '.join(alone)}; {count(len(ours), 'other')}, equal"), nulls)
    rounding = roundings(traced)
    judged = {name: array for name, array in theirs.items() if name not in nulls}
    errors = ((name, error(ours[name], array, rounding=rounding[name])) for name, array in judged.items())
    relaxed = relaxed_tolerances(errors, "gradient")
    given = enumerate(traced.reference.inputs)
    masks = [f"input {i}" for i, array in given if array.dtype.kind == "f" and f"input {i}" not in theirs]
    left = f"; {', '.join(masks)}: a mask, whose own gradient is not judged" if masks else ""
    stage = Stage("gradients", "equal", f"{count(len(ours), 'tensor')}, {len(nulls)} null{note(relaxed)}{left}{said(traced)}")
    return Result(stage, nulls, inconclusive(relaxed))


def activation_gradients(comparison: Comparison) -> Result:
    """Check the gradients of every module's output in the normal run, and those that each module sends back on torch's values.

    Equal gradients of different values prove nothing: a module whose values differ is different here too.
    """
    name, rows = "activation gradients", comparison.rows
    if comparison.traced.no_gradients:
        return not_taken(comparison, name, comparison.traced.no_gradients)
    diverging = any(row.diverging for row in rows)
    calls = comparison.traced.reference.calls.items()
    back = {site: [array for array in record.output_gradients if array is not None] for site, record in calls}
    not_finite = [site for site, arrays in back.items() if not all(np.isfinite(array).all() for array in arrays)]
    if not_finite and not diverging:
        if part := comparison.on_finite_rows:
            return without_rows(replace(activation_gradients(part), more=part.module_fields), comparison)
        says = f"torch's own are NaN or infinite in {len(not_finite)} calls of modules, first {not_finite[0]}"
        return Result(Stage(name, "failed", f"{says}; give inputs and weights without, or leave the activation gradients out"))
    if diverging or any(row.gradient is not None and over(row.gradient, "gradient") for row in rows):
        own = [(row, row.local_gradient) for row in rows if row.diverging and row.local_gradient is not None]
        local = [row for row, gradient in own if over(gradient, "gradient")]
        return Result(Stage(name, "different", count_diverging(local, rows) if local else first_diverging(rows)))
    peak = max((row.gradient.peak for row in rows if row.gradient is not None), default=0.0)
    both = [(f"what comes back to {row.name}", row.gradient) for row in rows]
    both += [(f"what {row.name} sends back", row.local_gradient) for row in rows]
    relaxed = relaxed_tolerances(both, "gradient")
    says = f"max/rms {peak:.1e} (tolerance {TOLERANCES['gradient'][1]:.0e}){note(relaxed)}"
    return Result(Stage(name, "equal", says), inconclusive=inconclusive(relaxed))


def not_taken(comparison: Comparison, name: str, error: ParityError) -> Result:
    """Result if JAX cannot differentiate the model: "n/a" if the values differ already, else the error is raised."""
    if not any(row.diverging or over(row.propagated, "activation") for row in comparison.rows):
        raise error
    at = f" (at {place})" if (place := line_of(error)) else ""
    return Result(Stage(name, "n/a", f"{error}{at}; the values differ already"))


def without_rows(result: Result, comparison: Comparison) -> Result:
    """Result of the check without the rows of the inputs in which torch's output, and so its gradients, are NaN or infinite."""
    left_out = part_of(~comparison.finite_rows, "rows")
    says = f"{result.stage.says}; without {left_out}, in which torch's output is NaN or infinite"
    return replace(result, stage=replace(result.stage, says=says))
