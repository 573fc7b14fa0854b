"""Hints for a port that differs, from the report of its comparison: each level tells more."""

import re
from itertools import takewhile

from jaxformer.parity.report.data import Module
from jaxformer.parity.report.report import Report

LEVELS = ("check", "module", "torch", "cause")
"""Contents of the levels 1 to 4."""
OF_CAUSES = 3
"""First level that needs a search for the cause."""
UNKNOWN = "the comparison knows no formula for it; print(jf.compare(...)) of smaller parts narrows it down"


def hint(report: Report, level: int) -> str:
    """Return the hint of a level, from 1: the check that differs, the module, torch's side of the cause, the whole cause."""
    first = next(stage for stage in report.stages if stage.status in ("different", "failed"))
    module = next(iter(report.diverging), None)
    cause = cause_of(report)
    told = {
        "check": f"the check {first.name!r} is the first that differs{after(report, first.name)}",
        "module": place_of(module) if module else f"no module alone is to blame: {first.name} of the whole model differs",
        "torch": torch_side(cause),
        "cause": cause or f"{first.says}: {UNKNOWN}",
    }
    return f"hint {level} of {len(LEVELS)}: {told[LEVELS[level - 1]]}"


def after(report: Report, name: str) -> str:
    """Name the checks before it, all equal; '' if it is the first."""
    before = [stage.name for stage in takewhile(lambda stage: stage.name != name, report.stages) if stage.status == "equal"]
    return f"; equal: {', '.join(before)}" if before else ""


def place_of(module: Module) -> str:
    """Describe the first module that differs, with its line in the port."""
    name = "the code around the modules" if module.jax == "(call)" else module.name
    return f"the first module that differs is {name}" + (f" ({module.source}), or what runs before it" if module.source else "")


def cause_of(report: Report) -> str:
    """Return the first cause in words; '' if none is known."""
    if report.diverging:
        return report.diverging[0].cause
    for stage in report.stages:
        if stage.status == "different" and (found := re.search(r"torch .* jax .*|jax .*", stage.says)):
            return found[0]
    return ""


def torch_side(cause: str) -> str:
    """Return what a cause says of torch, without the port's side."""
    if not cause:
        return UNKNOWN
    ours, _, port = re.sub(r" \(residual [^)]*\)", "", cause).partition("; jax ")
    if port and ours.startswith("torch "):
        return ours
    return "the cause has no side of torch's alone; the next hint tells the whole"
