"""Pages of the guide as programs: their blocks of Python run in order, in one namespace and one folder.

`python -m tests.guide [NAME ...]` runs every page, or those named, and writes the figures of docs/guide/figures anew.

A function that a page leaves to its reader is followed by `check_NAME`, which has to refuse the function as it stands there,
and to accept the solution that comes later. What a block of `text` shows was printed by the block before it.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs/guide"
PAGES = {path.stem: path for path in sorted(GUIDE.glob("*.md")) if path.stem != "index"}
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.M | re.S)
FIGURE = re.compile(r"!\[[^]]+\]\(figures/([\w.-]+)\)")


def figures(page: str) -> list[str]:
    """The names of the figures that a page shows."""
    return FIGURE.findall(PAGES[page].read_text("utf-8"))


def run(page: str, folder: Path) -> dict[str, Any]:
    """Run a page in a folder, and return its names."""
    (folder / "figures").mkdir(exist_ok=True)
    names: dict[str, Any] = {"__name__": page}
    printed, refused = "", set[str]()
    with contextlib.chdir(folder):
        for language, block in BLOCK.findall(PAGES[page].read_text("utf-8")):
            if language == "text":
                missing = [line for line in block.splitlines() if " ".join(line.split()) not in " ".join(printed.split())]
                assert not missing, f"{page}: {missing} is not in\n{printed}"
                continue
            with contextlib.redirect_stdout(out := io.StringIO()):
                exec(compile(block, f"{page}.md", "exec"), names)
            printed = out.getvalue()
            for exercise in unsolved(names, refused):
                refuse(names, exercise)
                refused.add(exercise)
    for exercise in refused:
        names[f"check_{exercise}"](names[exercise])
    assert refused, f"{page} has no exercise"
    return names


def unsolved(names: dict[str, Any], known: set[str]) -> Iterator[str]:
    """Yield the exercises whose checks are new."""
    for name in list(names):
        if name.startswith("check_") and (exercise := name.removeprefix("check_")) in names and exercise not in known:
            yield exercise


def refuse(names: dict[str, Any], exercise: str) -> None:
    """Assert that the check refuses the function that its reader has not written yet."""
    try:
        names[f"check_{exercise}"](names[exercise])
    except (AssertionError, NotImplementedError):
        return
    raise AssertionError(f"check_{exercise} accepts a function that is not written yet")


def main(pages: list[str]) -> None:
    """Write the figures of these pages, or of all."""
    os.environ["MPLBACKEND"] = "agg"
    for page in pages or PAGES:
        run(page, GUIDE)
        print(page, *figures(page))


if __name__ == "__main__":
    main(sys.argv[1:])
