"""The checks of values in float64: the whole model, and each module alone."""

import numpy as np

from jaxformer.parity.capture.call_sites import CALL
from jaxformer.parity.judge.comparison import Comparison, Result
from jaxformer.parity.judge.relaxed import INCONCLUSIVE, inconclusive, is_relaxed, note, relaxed_tolerances
from jaxformer.parity.judge.unsteady import drawn
from jaxformer.parity.judge.words import count_diverging, first_diverging, not_accused
from jaxformer.parity.numerics.metrics import TOLERANCES, over
from jaxformer.parity.record.outputs import said
from jaxformer.parity.report.data import Stage
from jaxformer.parity.run.trace import Traced

NOTHING_FINITE = "torch's output holds no finite number; give other inputs, or other weights"


def forward(comparison: Comparison) -> Result:
    """The output of the normal run, and the module where the first difference begins."""
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
    """'output', or of several 'output logits, boxes': those that differ; all where none does."""
    names = traced.reference.outputs
    wrong = [names[i] for i, found in traced.errors_of(CALL).items() if over(found, "activation")]
    return "output" if len(names) == 1 or not wrong else f"output {', '.join(wrong)}"


def local(comparison: Comparison) -> Result:
    """How many modules give other values than torch's when they are given torch's."""
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
    """That the JAX model ran without jit, where it did."""
    return [f"{traced.normal_run.untraced}, so it ran without"] if traced.normal_run.untraced else []


def closed(traced: Traced) -> list[str]:
    """Where calls are not seen."""
    return [f"calls inside of {each} are not compared by themselves" for each in traced.normal_run.unopened]
