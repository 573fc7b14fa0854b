"""Pages of the guide as programs: their blocks of Python run in order, in one namespace and one folder.

`python -m tests.guide [NAME ...]` runs every page, or those named, and writes the figures of docs/guide/figures anew.

A function that a page leaves to its reader is followed by `check_NAME`, which has to refuse the function as it stands there,
to accept the solution that comes later, and to refuse that with other results. What a block of `text` shows was printed by
the block before it.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.pages import ROOT, Block, Page

GUIDE = ROOT / "docs/guide"
PAGES = {path.stem: path for path in sorted(GUIDE.glob("*.md")) if path.stem != "index"}
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.M | re.S)
FIGURE = re.compile(r"!\[[^]]+\]\(figures/([\w.-]+)\)")


def figures(page: str) -> list[str]:
    """The names of the figures that a page shows."""
    return FIGURE.findall(PAGES[page].read_text("utf-8"))


def run(page: str, folder: Path) -> dict[str, Any]:
    """Run a page in a folder, and return its names."""
    reader, refused = Page(folder, folder, {}), set[str]()
    names = reader.names
    for block in (Block(*found) for found in BLOCK.findall(PAGES[page].read_text("utf-8"))):
        if block.language == "text":
            reader.check(block.text)
            continue
        reader.run(block, "")
        for exercise in unsolved(names, refused):
            refuse(names[f"check_{exercise}"], names[exercise])
            refused.add(exercise)
    for exercise in refused:
        check, solution = names[f"check_{exercise}"], names[exercise]
        check(solution)
        refuse(check, spoiled(solution))
    assert refused, f"{page} has no exercise"
    return names


def unsolved(names: dict[str, Any], known: set[str]) -> Iterator[str]:
    """Yield the exercises whose checks are new."""
    for name in list(names):
        if name.startswith("check_") and (exercise := name.removeprefix("check_")) in names and exercise not in known:
            yield exercise


def refuse(check: Callable[[Any], None], function: Callable[..., Any]) -> None:
    """Assert that a check refuses a function that is wrong, or that its reader has not written yet."""
    try:
        check(function)
    except (AssertionError, NotImplementedError):
        return
    raise AssertionError(f"{check.__name__} accepts a function that is wrong or not written yet")


def spoiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with other results: numbers are one more, booleans are inverted, and letters have one after them."""

    def other(x: Any) -> Any:
        if isinstance(x, str):
            return f"{x}?"
        return np.logical_not(x) if np.asarray(x).dtype == bool else x + 1

    return lambda *given: jax.tree.map(other, function(*given))


def main(pages: list[str]) -> None:
    """Write the figures of these pages, or of all."""
    os.environ["MPLBACKEND"] = "agg"
    for page in pages or PAGES:
        run(page, GUIDE)
        print(page, *figures(page))


if __name__ == "__main__":
    main(sys.argv[1:])
