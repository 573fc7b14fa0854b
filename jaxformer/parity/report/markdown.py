"""A report as Markdown, for a pull request or a page of notes."""

import re
from collections.abc import Iterable, Sequence

from jaxformer.parity.numerics.metrics import Error
from jaxformer.parity.report.data import ReportData
from jaxformer.parity.report.text import figure, worst_step

BAR = "\\|"
"""What stands for | inside of a table."""


def markdown(report: ReportData) -> str:
    """Verdict, checks, diverging modules, all modules, training, what was not judged, environment, traceback."""
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
    """Every stage."""
    rows = [[stage.name, stage.status, prose(stage.says)] for stage in report.stages]
    return table(["check", "result", "found"], rows)


def diverging(report: ReportData) -> list[str]:
    """Every error over its tolerance; of layers alike, those of the first."""
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
    """Every call, in torch's order; errors of the forward pass as relL2, of gradients as max/rms."""
    backward = any(module.gradient or module.local_gradient for module in report.modules)
    header = ["", "module", "torch", "propagated", "local", *(["gradient", "local gradient"] if backward else [])]
    rows = []
    for module in report.modules:
        row = ["**diverging**" if module.diverging else "", code(module.name), code(module.torch)]
        row += [figure(module.propagated.relative), figure(module.local.relative)]
        rows.append(row + ([peak(module.gradient), peak(module.local_gradient)] if backward else []))
    return table(header, rows, right=3)


def training(report: ReportData) -> list[str]:
    """The first, the worst and the last step."""
    if not report.steps:
        return []
    named = {"first": report.steps[0], "worst": worst_step(report.steps), "last": report.steps[-1]}
    rows = [
        [name, str(step.number), f"{step.loss:.6g}", figure(step.loss_error), figure(step.parameter_error)]
        for name, step in named.items()
    ]
    return table(["", "step", "torch's loss", "relative error of the loss", "max/rms of the parameters"], rows, right=1)


def environment(report: ReportData) -> list[str]:
    """What it ran on."""
    return table(["", ""], [[prose(name), prose(value)] for name, value in report.environment.items()])


def traceback(report: ReportData) -> list[str]:
    """Of what ended the comparison, indented: that is code."""
    return [f"    {line}" for line in report.traceback.splitlines()]


def section(title: str, lines: list[str]) -> list[str]:
    """Nothing where there are no lines."""
    return [f"## {title}", "", *lines] if lines else []


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: int | None = None) -> list[str]:
    """Columns from `right` on are figures; nothing where there are no rows."""
    lines = [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in rows]
    rule = ["---" if right is None or i < right else "--:" for i in range(len(header))]
    return [f"| {' | '.join(header)} |", f"| {' | '.join(rule)} |", *lines] if lines else []


def bullets(texts: Iterable[str]) -> list[str]:
    """One line each."""
    return [f"- {text}" for text in texts]


def peak(error: Error | None) -> str:
    """A gradient's figure."""
    return figure(error.peak) if error else ""


def prose(text: str) -> str:
    """Text on one line, escaped so that neither Markdown nor HTML reads any of it as markup."""
    return re.sub(r"([\\`*<>\[\]~&#$]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """A name; the fence is longer than any within."""
    text = " ".join(text.split())
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}" if text else ""
