"""Pages of docs/ as programs: their blocks of code run in order in one folder, as a reader would run them.

A block of Python that begins with `# NAME.py` is written to that file; others run one after another, in one namespace. A block
of `diff` changes the file that has its lines. Blocks of `sh` are run by bash, and what the `text` after them shows is in what
they print: line by line, with `...` for anything.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
PROGRAMS = {"jaxformer": "-m jaxformer", "python": ""}
"""Commands of a page -> the arguments with which this interpreter runs them."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a page, in order."""
    for language, inside in BLOCK.findall(text):
        yield Block(language, inside)


def programs(folder: Path) -> Path:
    """A folder of programs for PATH, which run this checkout."""
    folder.mkdir()
    for name, arguments in PROGRAMS.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        path.chmod(0o755)
    return folder


class Page:
    """A page that is run in a folder."""

    def __init__(self, folder: Path, bin_folder: Path, short: dict[str, str]):
        self.folder, self.short, self.printed = folder, short, ""
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
        self.names: dict[str, Any] = {}

    def run(self, block: Block, shown: str) -> None:
        """Run one block; `shown` is the text after it."""
        if block.language == "python":
            if name := re.match(r"# (\w+\.py)\n", block.text):
                (self.folder / name[1]).write_text(block.text)
            else:
                said = io.StringIO()
                with contextlib.chdir(self.folder), contextlib.redirect_stdout(said):
                    exec(compile(block.text, "page", "exec"), self.names)
                self.printed = said.getvalue()
        elif block.language == "diff":
            self.patch(block.text)
        elif block.language == "sh":
            lines = [self.shortened(line) for line in block.text.splitlines()]
            self.call(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], block.text, 1 if "DIFFERENT" in shown else 0)

    def shortened(self, line: str) -> str:
        """The command with the flags that make it short, which count as the last ones."""
        return f"{line} {' '.join(flags for known, flags in self.short.items() if known in line)}"

    def call(self, arguments: list[str], text: str, code: int = 0) -> None:
        """Run a process in the folder, and keep what it printed."""
        done = subprocess.run(arguments, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        self.printed = done.stdout + done.stderr
        assert done.returncode == code, f"{text}\n{self.printed}"

    def patch(self, text: str) -> None:
        """Replace the lines that begin with - by those that begin with + in the one file that has them."""
        for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", text, re.M):
            before, after = (re.sub(r"^[-+]", "", lines, flags=re.M) for lines in (old, new))
            (path,) = (path for path in self.folder.glob("*.py") if before in path.read_text())
            path.write_text(path.read_text().replace(before, after))

    def check(self, shown: str) -> None:
        """Every line that the page shows was printed, but for spaces."""
        printed = " ".join(self.printed.split())
        for line in shown.splitlines():
            pattern = ".*?".join(re.escape(" ".join(part.split())) for part in line.split("..."))
            assert re.search(pattern.replace(".*?", r" ?.*? ?"), printed), f"{line}\nis not in\n{self.printed}"


def run_page(text: str, folder: Path, bin_folder: Path, short: dict[str, str]) -> list[Block]:
    """Run a page, check what it shows, and return its blocks."""
    page, found = Page(folder, bin_folder, short), list(blocks(text))
    for block, after in zip(found, [*found[1:], Block("", "")], strict=True):
        shown = after.text if after.language == "text" else ""
        page.run(block, shown)
        page.check(shown)
    return found
