"""Report as plain text and in colours, with the verdict as the last line; and the number formats of all reports."""

from collections.abc import Iterable

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxformer.parity.report.data import Module, ReportData, Status, Step
from jaxformer.parity.report.summarize import part_of, say_names


def figure(value: float) -> str:
    """Format an error as '1.7e-04'; an exact zero is '0'."""
    return "0" if value == 0 else f"{value:.1e}"


def worst_step(steps: list[Step]) -> Step:
    """Return the step with the largest error of the loss or the parameters."""
    return max(steps, key=lambda step: max(rank(step.loss_error), rank(step.parameter_error)))


def rank(error: float) -> float:
    """Return an error's sort key: NaN counts as infinity."""
    return float("inf") if error != error else error


def count(number: int, noun: str) -> str:
    """Format a count with its noun: '1 call', '1,200 calls'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def plain_text(report: ReportData) -> str:
    """Render a line for each check, with the diverging modules below the check that found them."""
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
    """Return notes on the position of the error, and on what was not compared or not covered."""
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
    """Describe the first diverging module that is equal at some positions only; '' if there is none.

    'norm: equal at 0-6 of 17, first off at 7 (1.2e-02), most at 16 (3.0e-02)'
    """
    for module in report.diverging:
        off = [error > module.propagated.allowed("activation")[0] for error in module.positions]
        if any(off) and not all(off):
            equal, first = part_of(~np.array(off), ""), off.index(True)
            most = max(range(len(off)), key=lambda i: rank(module.positions[i]))
            sizes = [f"{at} ({figure(module.positions[at])})" for at in (first, most)]
            return f"{module.name}: equal at {equal}, first off at {sizes[0]}, most at {sizes[1]}"
    return ""


def module_lines(report: ReportData, modules: Iterable[Module]) -> list[str]:
    """Return a line for each group of diverging modules, with the reason."""
    return [f"  {group.name}   {report.reason(group.first)}" for group in report.groups(modules)]


def has_wrong_values(report: ReportData, module: Module) -> bool:
    """True if a diverging module gives other values, and not only other gradients."""
    return any(finding.where != "gradient" for finding in report.findings(module))


COLOURS: dict[Status, str] = {"equal": "green", "different": "red", "failed": "yellow", "n/a": "dim", "warning": "yellow"}


def show(report: ReportData, console: Console | None = None) -> None:
    """Print a report; plain text if the console is not a terminal: without colours, and with no line broken."""
    console = Console() if console is None else console
    if not console.is_terminal:
        print(plain_text(report), file=console.file)
        return
    console.print(stages(report))
    if report.diverging:
        console.print(diverging(report))
    for line in note_lines(report):
        console.print(Text(line, "dim"), soft_wrap=True)
    word, _, rest = report.verdict.partition(":")
    console.print(Text.assemble((f"{word}:", f"bold {COLOURS[report.status]}"), (rest, "bold")), soft_wrap=True)


def stages(report: ReportData) -> Table:
    """Build a table with name, status and finding of each check."""
    table = Table.grid(padding=(0, 3, 0, 0))
    for stage in report.stages:
        table.add_row(Text(stage.name), Text(stage.status, COLOURS[stage.status]), Text(stage.says, overflow="fold"))
    return table


def diverging(report: ReportData) -> Table:
    """Build a table with a row for each error over its tolerance; of similar layers, the first is shown.

    A module with wrong values and wrong gradients has two rows. A module's child goes by its own name here, to leave free space
    for the cause.
    """
    table = Table(header_style="dim", box=None, padding=(0, 2, 0, 0))
    for name in ("module", "where", "local", "tolerance", "cause"):
        table.add_column(name, overflow="fold", no_wrap=name in ("local", "tolerance"))
    for group in report.groups(report.diverging):
        module, name = group.first, group.name
        cause = module.cause or "; ".join(filter(None, ["no known formula explains it", module.looks]))
        for finding in report.findings(module):
            where = finding.where.replace(f"input of {module.jax}.", "input of ") if module.jax else finding.where
            cells = where, f"{finding.measure} {figure(finding.error)}", f"{finding.tolerance:.0e}"
            table.add_row(Text(name, "bold red"), *map(Text, cells), Text(cause, "" if module.cause else "dim"))
            name = cause = ""
    return table
