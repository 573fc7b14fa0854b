"""Report as Markdown, for a pull request or for notes."""

import re
from collections.abc import Iterable, Sequence

from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.data import ReportData
from jaxformer.parity.report.text import figure, worst_step

BAR = "\\|"
"""Escape of | inside a table."""


def markdown(report: ReportData) -> str:
    """Render verdict, checks, diverging modules, all modules, training, what was not covered, environment and traceback."""
    parts = [
        [f"# {prose(report.verdict)}"],
        section("Checks", checks(report)),
        section("Diverging modules", diverging(report)),
        section("All modules", modules(report)),
        section("Training", training(report)),
        section("Taps not compared", bullets(map(prose, report.taps))),
        section("Not covered by this run", bullets(map(prose, report.not_covered))),
        section("JAX calls not compared by themselves", bullets(map(code, report.jax_only))),
        section("torch calls not compared by themselves", bullets(map(code, report.torch_only))),
        section("Environment", environment(report)),
        section("Traceback", traceback(report)),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def checks(report: ReportData) -> list[str]:
    """Render a row for each check."""
    rows = [[stage.name, stage.status, prose(stage.says)] for stage in report.stages]
    return table(["check", "result", "found"], rows)


def diverging(report: ReportData) -> list[str]:
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
