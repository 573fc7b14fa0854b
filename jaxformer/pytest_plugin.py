"""pytest plugin: the fixture `assert_parity`, and --parity-report DIR, which saves the report of every comparison.

pytest loads this file in every project. Therefore it lies outside of `jaxformer.parity`, and imports what it needs only when a
test asks for the fixture.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OPTION, PROPERTY = "--parity-report", "parity report"
LONGEST = 150
"""Longest file name of a report, in characters; longer ones are truncated."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option --parity-report DIR."""
    says = "write the report of every comparison of the fixture assert_parity into this folder"
    parser.getgroup("jaxformer").addoption(OPTION, metavar="DIR", help=says)


def pytest_configure(config: pytest.Config) -> None:
    """Create the report folder; UsageError before the first test if that fails."""
    if (folder := _folder(config)) is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"{OPTION} {folder} cannot be made: {error.strerror}; give a folder") from None


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return assert_parity(torch_model, jax_model, inputs, **options) -> Report, as `jaxformer.parity.testing.assert_parity`.

    With --parity-report DIR, every report is written to DIR under the test's id, whether the models are equal or not.
    """
    from jaxformer.parity.testing import compare, raise_unless_equal

    folder, count = _folder(request.config), 0

    def check(torch_model: Any, jax_model: Any, inputs: tuple[Any, ...], **options: Any) -> Any:
        __tracebackhide__ = True
        nonlocal count
        report = compare(torch_model, jax_model, inputs, **options)
        count += 1
        if folder is not None:
            path = folder / (file_stem(request.node.nodeid) + (f"-{count}" if count > 1 else ""))
            request.node.user_properties.append((PROPERTY, _write(report, path)))
        raise_unless_equal(report)
        return report

    return check


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print how many reports were written, and where; workers of xdist pass the paths on in their tests' properties."""
    if (folder := _folder(config)) is not None:
        tests = [test for found in terminalreporter.stats.values() for test in found]
        properties = [pair for test in tests for pair in getattr(test, "user_properties", ())]
        written = {value for name, value in properties if name == PROPERTY}
        terminalreporter.write_line(f"parity: {len(written)} report{'' if len(written) == 1 else 's'} in {folder}")


def file_stem(test: str) -> str:
    """Return a test's id as a file name: 'tests/test_port.py::test_gpt[2]' becomes 'tests-test_port.py--test_gpt[2]'."""
    plain = test.replace("::", "--").replace("/", "-")
    safe = re.sub(r"[^\w.,=+\[\]-]", "_", plain, flags=re.ASCII)[:LONGEST]
    return safe if safe == plain else f"{safe}-{hashlib.sha256(test.encode()).hexdigest()[:8]}"


def _folder(config: pytest.Config) -> Path | None:
    given = config.getoption(OPTION)
    return None if given is None else config.invocation_params.dir / given


def _write(report: Any, path: Path) -> str:
    """Write a report as JSON and as HTML; return the path without its suffix."""
    path.with_name(f"{path.name}.json").write_text(report.to_json(), "utf-8")
    path.with_name(f"{path.name}.html").write_text(report.to_html(), "utf-8")
    return str(path)
