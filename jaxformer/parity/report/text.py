"""A report as plain text; the verdict is the last line."""

from collections.abc import Iterable

from jaxformer.parity.report.data import Module, ReportData
from jaxformer.parity.report.summarize import say_names


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
    """What was not compared, or could not be judged."""
    lines = [f"taps not compared: {', '.join(report.taps)}"] if report.taps else []
    jax_calls = [name for name in report.jax_only if name not in report.taps]
    unpaired = [
        f"{side} {', '.join(say_names(names, [*names, *(getattr(module, side) for module in report.modules)]))}"
        for side, names in (("jax", jax_calls), ("torch", report.torch_only))
        if names
    ]
    lines += [f"not compared by themselves: {'; '.join(unpaired)}"] if unpaired else []
    return lines + ([f"not covered by this run: {', '.join(report.not_covered)}"] if report.not_covered else [])


def module_lines(report: ReportData, modules: Iterable[Module]) -> list[str]:
    """A line for each group of diverging modules, with the reason."""
    return [f"  {group.name}   {report.reason(group.first)}" for group in report.groups(modules)]


def has_wrong_values(report: ReportData, module: Module) -> bool:
    """Whether a diverging module gives other values, and not only other gradients."""
    return any(finding.where != "gradient" for finding in report.findings(module))
