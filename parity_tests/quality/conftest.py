"""The first two cases of each file run by default, one of each kind of verdict; the others are slow, and run with `-m slow`."""

from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
QUICK = 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    seen = Counter[Path]()
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("slow"):
            seen[item.path] += 1
            if seen[item.path] > QUICK:
                item.add_marker(pytest.mark.slow)
