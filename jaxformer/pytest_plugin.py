"""pytest: the fixture `assert_parity`, and --parity-report DIR, which keeps every report it made.

It lies outside of `jaxformer.parity`, and imports what it needs when a test asks for it: pytest loads it with every project.
"""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OPTION, PROPERTY = "--parity-report", "parity report"
LONGEST = 150
"""Longer names of files are cut."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option --parity-report DIR."""
    says = "write the report of every comparison of the fixture assert_parity into this folder"
    parser.getgroup("jaxformer").addoption(OPTION, metavar="DIR", help=says)


def pytest_configure(config: pytest.Config) -> None:
    """A folder that cannot be made is refused before the first test."""
    if (folder := _folder(config)) is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"{OPTION} {folder} cannot be made: {error.strerror}; give a folder") from None


@pytest.fixture
def assert_parity(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """assert_parity(torch_model, jax_model, inputs, **options) -> Report: as `jaxformer.parity.testing.assert_parity`.

    With --parity-report DIR, what it found is in DIR under the test's id, equal or not.
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
    """How many reports were written, and where; workers of xdist tell it with their tests' properties."""
    if (folder := _folder(config)) is not None:
        tests = [test for found in terminalreporter.stats.values() for test in found]
        properties = [pair for test in tests for pair in getattr(test, "user_properties", ())]
        written = {value for name, value in properties if name == PROPERTY}
        terminalreporter.write_line(f"parity: {len(written)} report{'' if len(written) == 1 else 's'} in {folder}")


def file_stem(test: str) -> str:
    """A test's id as the name of a file: 'tests/test_port.py::test_gpt[2]' is 'tests-test_port.py--test_gpt[2]'."""
    plain = test.replace("::", "--").replace("/", "-")
    safe = re.sub(r"[^\w.,=+\[\]-]", "_", plain, flags=re.ASCII)[:LONGEST]
    return safe if safe == plain else f"{safe}-{hashlib.sha256(test.encode()).hexdigest()[:8]}"


def _folder(config: pytest.Config) -> Path | None:
    given = config.getoption(OPTION)
    return None if given is None else config.invocation_params.dir / given


def _write(report: Any, path: Path) -> str:
    """As JSON and as a page; the name without its ending is given back."""
    path.with_name(f"{path.name}.json").write_text(report.to_json(), "utf-8")
    path.with_name(f"{path.name}.html").write_text(report.to_html(), "utf-8")
    return str(path)
