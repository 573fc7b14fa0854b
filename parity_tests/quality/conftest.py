"""The first case of each file runs by default, one of each kind of verdict; the others are slow, and run with `-m slow`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = set[Path]()
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("slow"):
            if item.path in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(item.path)
