"""Checks in float64: of values (whole model, each module alone, dropout, running statistics, what the run covers), and of the
gradients of every weight and input, and of every module's output."""

from dataclasses import replace

import numpy as np

from jaxformer.errors import ParityError
from jaxformer.parity.attribute.blame import note_on_padding, roundings, wrong_gradients
from jaxformer.parity.attribute.comparison import Comparison, Result
from jaxformer.parity.attribute.notes import count_diverging, drawn, first_diverging, not_accused
from jaxformer.parity.attribute.rounding import inconclusive, is_relaxed, note, relaxed_tolerances
from jaxformer.parity.numerics.metrics import INCONCLUSIVE, NULL_GRADIENT, TOLERANCES, error, over, rms
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.summarize import part_of, say_names
from jaxformer.parity.report.text import count
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.runs.training_mode import is_statistic
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.not_finite import counted, first_not_finite
from jaxformer.parity.trace.outputs import said
from jaxformer.parity.trace.source_lines import line_of

NOTHING_FINITE = "torch's output holds no finite number; give other inputs, or other weights"


def forward(comparison: Comparison) -> Result:
    """Check the output of the normal run, and name the module where the first difference begins."""
    traced, rows = comparison.traced, comparison.rows
    output = next(row for row in rows if row.jax == CALL.path).propagated
    reference = traced.reference
    outputs = zip(reference.outputs, traced.normal_run.outputs[CALL], reference.calls[CALL].output, strict=True)
    for name, ours, theirs in outputs:
        if ours.shape != theirs.shape:
            says = f"{said(name)} is {list(ours.shape)} in jax and {list(theirs.shape)} in torch"
            return Result(Stage("forward", "different", says))
    if not np.isfinite(reference.output).any():
        place = first_not_finite(counted(reference.calls))
        return Result(
            Stage("forward", "failed", NOTHING_FINITE + f"; the first output that is not finite is {place}" * bool(place))
        )
    if any(over(row.propagated, "activation") for row in rows):
        words = (f"{differing(traced)} relL2 {output.relative:.1e}", first_diverging(rows), *untraced(traced), drawn(traced))
        return Result(Stage("forward", "different", "; ".join(filter(None, words))), inconclusive=closed(traced))
    if is_relaxed(output, "activation") and not output.rounding <= INCONCLUSIVE:
        says = f"torch's own rounding moves the output by {output.rounding:.0e}, so that float64 cannot tell"
        return Result(Stage("forward", "failed", f"{says}; give other inputs, or smaller weights"))
    relaxed = relaxed_tolerances(((row.name, row.propagated) for row in rows), "activation")
    says = f"relL2 {output.relative:.1e} (tolerance {TOLERANCES['activation'][0]:.0e}){note(relaxed)}"
    stage = Stage("forward", "equal", "; ".join((says, *traced.tables.says(), *untraced(traced))))
    return Result(stage, inconclusive=[*inconclusive(relaxed), *closed(traced)])


def differing(traced: Traced) -> str:
    """Name the differing outputs: 'output', or 'output logits, boxes' if there are several; all of them if none differs."""
    names = traced.reference.outputs
    wrong = [names[i] for i, found in traced.errors_of(CALL).items() if over(found, "activation")]
    return "output" if len(names) == 1 or not wrong else f"output {', '.join(wrong)}"


def local(comparison: Comparison) -> Result:
    """Count the modules that give other values than torch's on torch's inputs."""
    rows = comparison.rows
    diverging = [row for row in rows if row.diverging and over(row.local, "activation")]
    if not diverging and not np.isfinite(comparison.reference.output).any():
        return Result(Stage("local", "failed", NOTHING_FINITE))
    if not diverging and all(row.jax == CALL.path for row in rows):
        return Result(Stage("local", "n/a", "no module was compared by itself; the other checks judge the call"))
    relaxed = relaxed_tolerances(((row.name, row.local) for row in rows), "activation")
    shared = [row.name for row in rows if row.shared]
    verb = "divides" if len(shared) == 1 else "divide"
    says = f"; {', '.join(shared)} {verb} the work otherwise than torch's modules, with the same result" if shared else ""
    status = "different" if diverging else "equal"
    counted = "; ".join((count_diverging(diverging, rows), *not_accused(rows)))
    stage = Stage("local", status, f"{counted}{says}{note(relaxed)}")
    return Result(stage, inconclusive=inconclusive(relaxed))


def untraced(traced: Traced) -> list[str]:
    """Note that the JAX model ran without jit, if it did."""
    return [f"{traced.normal_run.untraced}, so it ran without"] if traced.normal_run.untraced else []


def closed(traced: Traced) -> list[str]:
    """Note modules that were not selected, and transformations whose inner calls are not seen."""
    left_out = [f"modules: {traced.reference.left_out}"] if traced.reference.left_out else []
    return left_out + [f"calls inside of {each} are not compared by themselves" for each in traced.normal_run.unopened]


def sensitivity(comparison: Comparison) -> Result | None:
    """Count the weights without influence on torch's output; None if torch was not asked."""
    found = comparison.reference.not_covered
    if found is None:
        return None
    says = f"{len(found)} without influence on the output, so not judged" if found else "the output depends on every parameter"
    return Result(Stage("sensitivity", "equal", says), list(found))


def dropout(comparison: Comparison) -> Result | None:
    """Check dropout and other draws; None if nothing is drawn, as in inference mode.

    Draws of one side only are no difference if everything else is equal.
    """
    draws = comparison.candidate.draws
    if draws is None or not (draws.torch or draws.jax):
        return None
    diverging = any(row.diverging for row in comparison.rows)
    if diverging and (untied := draws.untied()):
        return Result(Stage("dropout", "failed", untied))
    said = [says for _, _, says in draws.differences()]
    different = bool(said) and diverging
    return Result(Stage("dropout", "different" if different else "equal", "; ".join([*said, draws.says()])))


NONE_GIVEN = "call_jax gives no new ones: let it return (output, updated), as apply(variables, x, mutable=['batch_stats']) does"


def running_statistics(comparison: Comparison) -> Result | None:
    """Check the updates of running statistics; None if torch has none, as in inference mode."""
    if not comparison.in_training:
        return None
    traced = comparison.traced
    torch = [site for site in traced.reference.calls if is_statistic(site, traced.reference)]
    if not torch:
        return None
    pairs = {other: mine for mine, other in traced.pairs.items()}
    missing = [site.path for site in torch if site not in pairs]
    left_out = [f"{path} after the call" for path in missing]
    if len(missing) == len(torch):
        return Result(Stage("running statistics", "n/a", NONE_GIVEN), inconclusive=left_out)
    names = [row.jax for row in comparison.rows if row.diverging and row.torch in {site.path for site in torch}]
    errors = [found for site in torch if (mine := pairs.get(site)) and (found := traced.normal[mine])]
    if names or any(over(each, "activation") for each in errors):
        says = f"{len(names)} of {len(torch)} have other updates: {', '.join(names)}" if names else "of another input"
        return Result(Stage("running statistics", "different", says), inconclusive=left_out)
    largest = max((each.relative for each in errors), default=0.0)
    return Result(
        Stage("running statistics", "equal", f"{count(len(errors), 'buffer')}, relL2 {largest:.1e}"), inconclusive=left_out
    )


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
    stage = Stage(
        "gradients", "equal", f"{count(len(ours), 'tensor')}, {len(nulls)} null{note(relaxed)}{left}{note_on_padding(traced)}"
    )
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
