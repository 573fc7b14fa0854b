"""A report as plain text; the verdict is the last line."""

from collections.abc import Iterable

import numpy as np

from jaxformer.parity.report.data import Module, ReportData
from jaxformer.parity.report.format import figure, rank
from jaxformer.parity.report.summarize import part_of, say_names


def plain_text(report: ReportData) -> str:
    """Every check in a line; the diverging modules stand below the check that found them."""
    width = max((len(stage.name) for stage in report.stages), default=0) + 4
    left, lines = list(report.diverging), []
    for stage in report.stages:
        lines.append(f"{stage.name:{width}}{stage.status:12}{stage.says}".rstrip())
        if stage.name in ("local", "activation gradients"):
            here = [module for module in left if stage.name != "local" or has_wrong_values(report, module)]
            left = [module for module in left if module not in here]
            lines += module_lines(report, here)
    lines += module_lines(report, left)
    return "\n".join([*lines, *note_lines(report), report.verdict])


def note_lines(report: ReportData) -> list[str]:
    """Where the error is; what was not compared, or could not be judged."""
    lines = [f"error by position: {where}"] if (where := position_line(report)) else []
    lines += [f"taps not compared: {', '.join(report.taps)}"] if report.taps else []
    jax_calls = [name for name in report.jax_only if name not in report.taps]
    unpaired = [
        f"{side} {', '.join(say_names(names, [*names, *(getattr(module, side) for module in report.modules)]))}"
        for side, names in (("jax", jax_calls), ("torch", report.torch_only))
        if names
    ]
    lines += [f"not compared by themselves: {'; '.join(unpaired)}"] if unpaired else []
    return lines + ([f"not covered by this run: {', '.join(report.not_covered)}"] if report.not_covered else [])


def position_line(report: ReportData) -> str:
    """'norm: equal at 0-6 of 17, first off at 7 (1.2e-02), most at 16 (3.0e-02)'; of the first diverging module that is equal
    at some positions alone, '' where there is none."""
    for module in report.diverging:
        off = [error > module.propagated.allowed("activation")[0] for error in module.positions]
        if any(off) and not all(off):
            equal, first = part_of(~np.array(off), ""), off.index(True)
            most = max(range(len(off)), key=lambda i: rank(module.positions[i]))
            sizes = [f"{at} ({figure(module.positions[at])})" for at in (first, most)]
            return f"{module.name}: equal at {equal}, first off at {sizes[0]}, most at {sizes[1]}"
    return ""


def module_lines(report: ReportData, modules: Iterable[Module]) -> list[str]:
    """A line for each group of diverging modules, with the reason."""
    return [f"  {group.name}   {report.reason(group.first)}" for group in report.groups(modules)]


def has_wrong_values(report: ReportData, module: Module) -> bool:
    """Whether a diverging module gives other values, and not only other gradients."""
    return any(finding.where != "gradient" for finding in report.findings(module))
