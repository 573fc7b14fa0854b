"""pytest plugin that writes each report which a test and its fixtures make: a part of `benchmarks.verdicts`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.verdicts import VERDICTS, file_name, write
from jaxformer.parity.report.report import Report

made: list[Report] = []


def noting(build: Any) -> Any:
    """Return an initialiser that builds a report as before, and also keeps it."""

    def init(report: Report, *given: Any, **named: Any) -> None:
        build(report, *given, **named)
        made.append(report)

    return init


def pytest_configure() -> None:
    """Keep every report from now on."""
    Report.__init__ = noting(Report.__init__)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write the reports of one test when it ends: then they are complete."""
    made.clear()
    result = yield
    if made:
        write(Path(os.environ[VERDICTS]) / f"{file_name(item.nodeid)}.txt", "\n\n".join(map(str, made)))
    return result
