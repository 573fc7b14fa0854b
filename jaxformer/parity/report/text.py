"""Report as plain text and in colours, with the verdict as the last line; as Markdown, for a pull request or for notes; and the
number formats of all reports."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.brief import brief
from jaxformer.parity.report.data import Module, ReportData, Status, Step
from jaxformer.parity.report.summarize import part_of, say_names
from jaxformer.parity.report.two_jax import worded


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
    lines += [worded(f"not compared by themselves: {'; '.join(unpaired)}", report)] if unpaired else []
    lines += [f"smallest failing call: {report.reduced}"] if report.reduced else []
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
    """Print a report; plain text if the console is not a terminal: without colours, with no line broken, and a long one cut."""
    console = Console() if console is None else console
    if not console.is_terminal:
        print(brief(plain_text(report)), file=console.file)
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


BAR = "\\|"
"""Escape of | inside a table."""


def markdown(report: ReportData) -> str:
    """Render verdict, checks, diverging modules, all modules, training, what was not covered, environment and traceback."""
    parts = [
        [f"# {prose(report.verdict)}"],
        section("Checks", checks(report)),
        section("Diverging modules", diverging_rows(report)),
        section("All modules", modules(report)),
        section("Smallest failing call", [prose(str(report.reduced))] if report.reduced else []),
        section("Training", training(report)),
        section("Taps not compared", bullets(map(prose, report.taps))),
        section("Not covered by this run", bullets(map(prose, report.not_covered))),
        section("JAX calls not compared by themselves", bullets(map(code, report.jax_only))),
        section("torch calls not compared by themselves", bullets(map(code, report.torch_only))),
    ]
    said = [worded("\n".join(lines), report) for lines in parts if lines]
    of_packages = [section("Environment", environment(report)), section("Traceback", traceback(report))]
    return "\n\n".join([*said, *("\n".join(lines) for lines in of_packages if lines)]) + "\n"


def checks(report: ReportData) -> list[str]:
    """Render a row for each check."""
    rows = [[stage.name, stage.status, prose(stage.says)] for stage in report.stages]
    return table(["check", "result", "found"], rows)


def diverging_rows(report: ReportData) -> list[str]:
    """Render a row for each error over its tolerance; of similar layers, the first is shown."""
    rows = [
        [
            code(group.name),
            prose(found.where),
            f"{found.measure} {figure(found.error)}",
            f"{found.tolerance:.0e}",
            prose(group.first.cause or group.first.looks),
        ]
        for group in report.groups(report.diverging)
        for found in report.findings(group.first)
    ]
    return table(["module", "where", "local", "tolerance", "cause"], rows)


def modules(report: ReportData) -> list[str]:
    """Render a row for each call, in torch's order; forward errors as relL2, gradients as max/rms."""
    backward = any(module.gradient or module.local_gradient for module in report.modules)
    header = ["", "module", "torch", "propagated", "local", *(["gradient", "local gradient"] if backward else [])]
    rows = []
    for module in report.modules:
        row = ["**diverging**" if module.diverging else "", code(module.name), code(module.torch)]
        row += [figure(module.propagated.relative), figure(module.local.relative)]
        rows.append(row + ([peak(module.gradient), peak(module.local_gradient)] if backward else []))
    return table(header, rows, right=3)


def training(report: ReportData) -> list[str]:
    """Render the first, the worst and the last step."""
    if not report.steps:
        return []
    named = {"first": report.steps[0], "worst": worst_step(report.steps), "last": report.steps[-1]}
    rows = [
        [name, str(step.number), f"{step.loss:.6g}", figure(step.loss_error), figure(step.parameter_error)]
        for name, step in named.items()
    ]
    return table(["", "step", "torch's loss", "relative error of the loss", "max/rms of the parameters"], rows, right=1)


def environment(report: ReportData) -> list[str]:
    """Render the versions, device and precision of the run."""
    return table(["", ""], [[prose(name), prose(value)] for name, value in report.environment.items()])


def traceback(report: ReportData) -> list[str]:
    """Render the traceback of the error that ended the comparison, indented as a code block."""
    return [f"    {line}" for line in report.traceback.splitlines()]


def section(title: str, lines: list[str]) -> list[str]:
    """Add a heading to the lines; empty if there are no lines."""
    return [f"## {title}", "", *lines] if lines else []


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: int | None = None) -> list[str]:
    """Render a table whose columns from `right` on hold figures and are right-aligned; empty if there are no rows."""
    lines = [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in rows]
    rule = ["---" if right is None or i < right else "--:" for i in range(len(header))]
    return [f"| {' | '.join(header)} |", f"| {' | '.join(rule)} |", *lines] if lines else []


def bullets(texts: Iterable[str]) -> list[str]:
    """Render a list with one line for each text."""
    return [f"- {text}" for text in texts]


def peak(error: Error | None) -> str:
    """Format the max/rms of a gradient; '' if there is none."""
    return figure(error.peak) if error else ""


def prose(text: str) -> str:
    """Join text into one line, escaped so that neither Markdown nor HTML reads any of it as markup."""
    return re.sub(r"([\\`*<>\[\]~&#$]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """Render a name as inline code, with a fence longer than any inside the name."""
    text = " ".join(text.split())
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}" if text else ""
