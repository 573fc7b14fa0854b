"""`jaxformer report`: one page of a run."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.cli.flags import parse
from jaxformer.errors import printable
from jaxformer.io.atomic import write_text
from jaxformer.runtime.compilation_cache import CacheFlag, use_cache


@dataclass(frozen=True, kw_only=True)
class Report(CacheFlag):
    """Write one page of a run, which needs no other file and no network: its settings, curves, samples, attention, environment
    and certificate. A run that is still being written is shown as far as it has come.
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    text: str | None = None
    """A text that the model continues, or a source whose target it writes. None: a text of its own; a translator needs one."""
    certificate: Path | None = None
    """A folder that the run was converted into, with its certificate. None: the run's own folder."""
    out: Path = Path("report.html")
    """The page to write."""


def main(arguments: list[str]) -> None:
    """Write the page, and print one line."""
    flags = parse(Report, arguments, prog="jaxformer report")
    use_cache(flags.cache)
    from jaxformer.plots.run_page import page
    from jaxformer.plots.run_report import read_report

    report = read_report(flags.folder, flags.text, flags.certificate)
    write_text(flags.out, page(report), "name another file with --out")
    print(printable(f"{report.name}: {report.state} · page {flags.out}"))
    for remark in report.remarks:
        print(remark)
