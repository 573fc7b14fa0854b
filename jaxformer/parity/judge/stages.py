"""What each check says of two runs in float64: equal, different, or failed where torch gives nothing to compare."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from jaxformer.parity.capture.call_sites import CALL
from jaxformer.parity.judge.blame import roundings, wrong_gradients
from jaxformer.parity.numerics.metrics import TOLERANCES, Kind
from jaxformer.parity.report.data import Error, Module, Stage
from jaxformer.parity.run.trace import Traced, error, over

NOTHING_FINITE = "torch's output holds no finite number; give other inputs, or other weights"
INCONCLUSIVE = 1e-6
"""What torch's own rounding moves by more than that is not judged by float64."""


class Relaxed(NamedTuple):
    """An array over tier A's line that counts as equal, since torch's own rounding may be why."""

    name: str
    moved: float
    """By rounding alone: relL2 or max/rms."""
    line: float
    """What it is judged against instead."""


def is_relaxed(found: Error, kind: Kind) -> bool:
    """Whether it would be over the line, if torch did not round."""
    return over(replace(found, rounding=0.0, rounding_peak=0.0), kind) and not over(found, kind)


def relaxed_tolerances(found: Iterable[tuple[str, Error | None]], kind: Kind) -> list[Relaxed]:
    """All of those, the largest first."""
    excused = [(name, each) for name, each in found if each is not None and is_relaxed(each, kind)]
    by_size = [each.relative > TOLERANCES[kind][0] for _, each in excused]
    figures = [
        Relaxed(name, each.rounding if size else each.rounding_peak, each.allowed(kind)[0 if size else 1])
        for (name, each), size in zip(excused, by_size, strict=True)
    ]
    return sorted(figures, key=lambda excuse: -excuse.line)


def noted(found: list[Relaxed]) -> str:
    """Behind what a stage says; '' where the lines alone decide."""
    if not found:
        return ""
    name, moved, line = found[0]
    more = f", and {len(found) - 1} more likewise" if len(found) > 1 else ""
    return f"; ill-conditioned: torch's own rounding moves {name} by {moved:.1e}, judged against {line:.1e}{more}"


def inconclusive(found: Iterable[Relaxed]) -> list[str]:
    """What could not be noticed for that."""
    return [f"{name} (torch's own rounding moves it by {moved:.0e})" for name, moved, _ in found if not moved <= INCONCLUSIVE]


def name_of(row: Module) -> str:
    """Of ours; the model itself has a name too."""
    return row.jax or "the model"


def forward_stage(traced: Traced, rows: list[Module]) -> tuple[Stage, list[str]]:
    """The output, and where the first difference begins; and what of it could not be judged."""
    output = next(row for row in rows if row.jax == CALL.path).propagated
    (ours,), (theirs,) = traced.ours.outputs[CALL], traced.reference.calls[CALL].output
    if ours.shape != theirs.shape:
        return Stage("forward", "different", f"the output is {list(ours.shape)} in jax and {list(theirs.shape)} in torch"), []
    if not np.isfinite(theirs).any():
        return Stage("forward", "failed", NOTHING_FINITE), []
    if any(over(row.propagated, "activation") for row in rows):
        says = "; ".join((f"output {output.relative:.1e}", _first(rows), *untraced(traced)))
        return Stage("forward", "different", says), []
    if is_relaxed(output, "activation") and not output.rounding <= INCONCLUSIVE:
        says = f"torch's own rounding moves the output by {output.rounding:.0e}, so that float64 cannot tell"
        return Stage("forward", "failed", f"{says}; give other inputs, or smaller weights"), []
    found = relaxed_tolerances(((name_of(row), row.propagated) for row in rows), "activation")
    says = f"relL2 {output.relative:.1e} (line {TOLERANCES['activation'][0]:.0e}){noted(found)}"
    return Stage("forward", "equal", "; ".join((says, *traced.tables, *untraced(traced)))), inconclusive(found)


def local_stage(traced: Traced, rows: list[Module]) -> tuple[Stage, list[str]]:
    """How many modules' own code differs; and what of it could not be judged."""
    diverging = [row for row in rows if row.diverging and over(row.local, "activation")]
    if not diverging and not np.isfinite(traced.reference.output).any():
        return Stage("local", "failed", NOTHING_FINITE), []
    found = relaxed_tolerances(((name_of(row), row.local) for row in rows), "activation")
    shared = [name_of(row) for row in rows if row.shared]
    says = f"; {', '.join(shared)} share their work otherwise than torch's do, to the same end" if shared else ""
    return Stage(
        "local", "different" if diverging else "equal", f"{_count(diverging, rows)}{says}{noted(found)}"
    ), inconclusive(found)


def untraced(traced: Traced) -> list[str]:
    """That the model ran without jit, where it did."""
    return [f"jit cannot trace {traced.ours.untraced}, so it ran without"] if traced.ours.untraced else []


def gradients_stage(traced: Traced, rows: list[Module], alone: Sequence[str] = ()) -> tuple[Stage, list[str], list[str]]:
    """Of every weight and every float input; the null ones, and those that could not be judged. `alone` says what one side
    trains and the other does not."""
    ours, rounding = traced.gradients, roundings(traced)
    blind = [name for name, array in traced.reference.gradients.items() if not np.isfinite(array).all()]
    if blind and not any(row.diverging for row in rows):
        says = f"torch's own are NaN or infinite in {len(blind)} of {len(ours)} tensors, first {blind[0]}"
        return Stage("gradients", "failed", f"{says}; give inputs and weights without, or leave the gradients out"), [], []
    nulls, wrong = wrong_gradients(traced)
    if wrong:
        return Stage("gradients", "different", "; ".join((*alone, wrong, _first(rows)))), [], []
    if alone:
        return Stage("gradients", "different", f"{'; '.join(alone)}; {len(ours)} others, equal"), nulls, []
    errors = {
        name: error(ours[name], theirs, rounding=rounding[name])
        for name, theirs in traced.reference.gradients.items()
        if name not in nulls
    }
    found = relaxed_tolerances(errors.items(), "gradient")
    return Stage("gradients", "equal", f"{len(ours)} tensors, {len(nulls)} null{noted(found)}"), nulls, inconclusive(found)


def activation_gradients_stage(traced: Traced, rows: list[Module]) -> tuple[Stage, list[str]]:
    """Of what every module gives, along the normal run; and of what each one sends back on torch's values; and what of that
    could not be judged.

    Gradients that are equal where values are not are no proof: a module whose values differ is different here too.
    """
    local = [row for row in rows if row.diverging and row.local_gradient is not None and over(row.local_gradient, "gradient")]
    propagated = [row for row in rows if row.gradient is not None and over(row.gradient, "gradient")]
    blind = [
        site
        for site, record in traced.reference.calls.items()
        if not all(np.isfinite(array).all() for array in record.output_gradients if array is not None)
    ]
    if blind and not any(row.diverging for row in rows):
        says = f"torch's own are NaN or infinite in {len(blind)} calls of modules, first {blind[0]}"
        says += "; give inputs and weights without, or leave the activation gradients out"
        return Stage("activation gradients", "failed", says), []
    if not any(row.diverging for row in rows) and not propagated:
        peak = max((row.gradient.peak for row in rows if row.gradient is not None), default=0.0)
        both = [(f"what comes back to {name_of(row)}", row.gradient) for row in rows]
        both += [(f"what {name_of(row)} sends back", row.local_gradient) for row in rows]
        found = relaxed_tolerances(both, "gradient")
        says = f"max/rms {peak:.1e} (line {TOLERANCES['gradient'][1]:.0e}){noted(found)}"
        return Stage("activation gradients", "equal", says), inconclusive(found)
    says = _count(local, rows) if local else _first(rows)
    return Stage("activation gradients", "different", says), []


def _count(diverging: list[Module], rows: list[Module]) -> str:
    """How many modules are diverging; what is done around them is the call's, which is none."""
    modules = [row for row in rows if row.jax != CALL.path]
    named = [row for row in modules if row in diverging]
    if len(named) == len(diverging):
        return f"{len(named)} of {len(modules)} modules diverging" if modules else "no module was compared by itself"
    return f"{CALL.path} diverging, and {len(named)} of {len(modules)} modules" if modules else f"{CALL.path} diverging"


def _first(rows: list[Module]) -> str:
    """The earliest module in torch's order whose own code gives other values, or else sends back others."""
    for row in rows:
        if row.diverging and over(row.local, "activation"):
            line = row.local.allowed("activation")[0]
            return f"first at {name_of(row)} (local {row.local.relative:.1e}, line {line:.0e})"
    for row in rows:
        if row.diverging and row.local_gradient is not None and over(row.local_gradient, "gradient"):
            line = row.local_gradient.allowed("gradient")[1]
            return f"first at {name_of(row)} (local gradient {row.local_gradient.peak:.1e}, line {line:.0e})"
    return "no module's own code differs: what is between them does"
