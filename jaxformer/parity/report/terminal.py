"""A report in colours, with the answer on the last line."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxformer.parity.report.format import figure
from jaxformer.parity.report.report import Report, Status

COLOURS: dict[Status, str] = {"equal": "green", "different": "red", "failed": "yellow"}


def show(report: Report, console: Console | None = None) -> None:
    """Print a report. Where the console is no terminal, that is `str(report)`: no colours, and no line is broken."""
    console = Console() if console is None else console
    if not console.is_terminal:
        print(report, file=console.file)
        return
    console.print(stages(report))
    if report.diverging:
        console.print(diverging(report))
    if report.taps:
        console.print(Text(f"taps not compared: {', '.join(report.taps)}", "dim"), soft_wrap=True)
    for line in report.alone:
        console.print(Text(line, "dim"), soft_wrap=True)
    if report.not_covered:
        console.print(Text(f"not noticed by this run: {', '.join(report.not_covered)}", "dim"), soft_wrap=True)
    word, _, rest = report.verdict.partition(":")
    console.print(Text.assemble((f"{word}:", f"bold {COLOURS[report.status]}"), (rest, "bold")), soft_wrap=True)


def stages(report: Report) -> Table:
    """Name, status and finding of each check."""
    table = Table.grid(padding=(0, 3, 0, 0))
    for stage in report.stages:
        table.add_row(Text(stage.name), Text(stage.status, COLOURS[stage.status]), Text(stage.says, overflow="fold"))
    return table


def diverging(report: Report) -> Table:
    """One row for each figure that is over its line, of layers alike those of the first; what is both wrong forwards and
    backwards has two.

    A module's child goes by its own name here, to leave room for the cause.
    """
    table = Table(header_style="dim", box=None, padding=(0, 2, 0, 0))
    for name in ("module", "where", "local", "line", "cause"):
        table.add_column(name, overflow="fold", no_wrap=name in ("local", "line"))
    for group in report.groups(report.diverging):
        module, name = group.first, group.name
        cause = module.cause or "no known formula explains it"
        for finding in report.findings(module):
            where = finding.where.replace(f"input of {module.jax}.", "input of ") if module.jax else finding.where
            cells = where, f"{finding.measure} {figure(finding.error)}", f"{finding.line:.0e}"
            table.add_row(Text(name, "bold red"), *map(Text, cells), Text(cause, "" if module.cause else "dim"))
            name = cause = ""
    return table
