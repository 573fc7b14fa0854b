"""`jaxformer parity explain`: show a saved report."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from jaxformer.cli.flags import parse
from jaxformer.cli.parity.shared_flags import ReportFlags
from jaxformer.errors import InputError
from jaxformer.validation.fields import read_small


@dataclass(frozen=True, kw_only=True)
class Explain(ReportFlags):
    """Print a saved report, or write it in another format. The exit code is that of the comparison."""

    report: tyro.conf.Positional[Path]
    """The JSON file."""


def main(arguments: list[str]) -> int:
    """Read the report, print it, and return its exit code."""
    flags = parse(Explain, arguments, prog="jaxformer parity explain")
    from jaxformer.parity.report.report import Report

    try:
        text = read_small(flags.report)
    except OSError as error:
        raise InputError(f"{flags.report} cannot be read: {error.strerror}; give a report that --json wrote") from None
    try:
        report = Report.from_json(text.decode("utf-8"))
    except (InputError, UnicodeDecodeError):
        raise InputError(f"{flags.report} is not a report; give one that --json wrote") from None
    return flags.show(report)
