"""Checks of values in float64: whole model, each module alone, dropout, running statistics, and what the run covers."""

import numpy as np

from jaxformer.parity.attribute.comparison import Comparison, Result
from jaxformer.parity.attribute.notes import count_diverging, drawn, first_diverging, not_accused
from jaxformer.parity.attribute.rounding import INCONCLUSIVE, inconclusive, is_relaxed, note, relaxed_tolerances
from jaxformer.parity.numerics.metrics import TOLERANCES, over
from jaxformer.parity.report.data import Stage
from jaxformer.parity.report.text import count
from jaxformer.parity.runs.trace import Traced
from jaxformer.parity.runs.training_mode import is_statistic
from jaxformer.parity.trace.call_sites import CALL
from jaxformer.parity.trace.outputs import said

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
        return Result(Stage("forward", "failed", NOTHING_FINITE))
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
    """Note transformations whose inner calls are not seen."""
    return [f"calls inside of {each} are not compared by themselves" for each in traced.normal_run.unopened]


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
