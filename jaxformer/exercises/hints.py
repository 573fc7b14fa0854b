"""Hints for a port that differs, from the report of its comparison: each level tells more."""

import re
from itertools import takewhile

from jaxformer.parity.report.report import Report

LEVELS = ("check", "module", "torch", "cause")
"""Contents of the levels 1 to 4."""
RESIDUAL = re.compile(r" \(residual [^)]*\)")
HANDED = "input of "
"""Begin of a module's `what` that names the child to which it gives something else."""
UNKNOWN = "the comparison knows no formula for it; print(jf.compare(...)) of smaller parts narrows it down"


def hint(report: Report, level: int) -> str:
    """Return the hint of a level, from 1: the check that differs, the module, torch's side of the cause, the whole cause."""
    first = next(stage for stage in report.stages if stage.status in ("different", "failed"))
    cause = cause_of(report)
    told = {
        "check": f"the check {first.name!r} is the first that differs{after(report, first.name)}",
        "module": place_of(report)
        if report.diverging
        else f"no module alone is to blame: {first.name!r} is a check of the whole",
        "torch": torch_side(cause),
        "cause": cause or f"{first.says}: {UNKNOWN}",
    }
    return f"hint {level} of {len(LEVELS)}: {told[LEVELS[level - 1]]}"


def after(report: Report, name: str) -> str:
    """Name the checks before it, all equal; '' if it is the first."""
    before = [stage.name for stage in takewhile(lambda stage: stage.name != name, report.stages) if stage.status == "equal"]
    return f"; equal: {', '.join(before)}" if before else ""


def place_of(report: Report) -> str:
    """Describe the first module that differs, with its line in the port, and where in its code the difference begins."""
    module = report.diverging[0]
    name = "the code around the modules" if module.jax == "(call)" else module.name
    line = f" ({module.source})" if module.source else ""
    before = next((each.name for each in reversed(report.modules[: report.modules.index(module)])), "")
    if module.what.startswith(HANDED):
        inside = f", in what it gives to {module.what.removeprefix(HANDED)}"
    elif before:
        inside = f"; all up to {before} is equal: look there, and at the code between the two"
    else:
        inside = ""
    return f"the first module that differs is {name}{line}{inside}"


def cause_of(report: Report) -> str:
    """Return the first cause in words, with others of the same result in lines of their own; '' if none is known."""
    if report.diverging:
        return RESIDUAL.sub("", report.diverging[0].cause).replace(", or the same: ", "\n  or the same: ")
    for stage in report.stages:
        if stage.status == "different" and (found := re.search(r"torch .* jax .*|jax .*", stage.says)):
            return RESIDUAL.sub("", found[0])
    return ""


def torch_side(cause: str) -> str:
    """Return what a cause says of torch, without the port's side."""
    if not cause:
        return UNKNOWN
    ours, _, port = cause.partition("; jax ")
    if port and ours.startswith("torch "):
        return ours
    return "the cause has no side of torch's alone; the next hint tells the whole"
