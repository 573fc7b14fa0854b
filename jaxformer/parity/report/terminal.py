"""A report in colours; the verdict is the last line."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxformer.parity.report.data import ReportData, Status
from jaxformer.parity.report.format import figure
from jaxformer.parity.report.text import note_lines, plain_text

COLOURS: dict[Status, str] = {"equal": "green", "different": "red", "failed": "yellow", "n/a": "dim", "warning": "yellow"}


def show(report: ReportData, console: Console | None = None) -> None:
    """Print a report. Where the console is not a terminal, it is plain text: without colours, and no line is broken."""
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
    """Name, status and finding of each check."""
    table = Table.grid(padding=(0, 3, 0, 0))
    for stage in report.stages:
        table.add_row(Text(stage.name), Text(stage.status, COLOURS[stage.status]), Text(stage.says, overflow="fold"))
    return table


def diverging(report: ReportData) -> Table:
    """A row for each error over its tolerance: a module with wrong values and wrong gradients has two. Of layers alike, the
    first is shown.

    A module's child goes by its own name here, to leave room for the cause.
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
