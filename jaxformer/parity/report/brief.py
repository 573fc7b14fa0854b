"""Short form of a long report, for whoever reads a command's output as a whole: the first lines and the verdict, with the rest
in a file."""

import os
import tempfile

MOST = 4000
"""Largest number of characters of a report that is printed whole."""
LINE, VERDICT = 400, 1200
"""Largest number of characters of a line, and of the verdict, in a short report."""


def brief(text: str) -> str:
    """Return a report as it is, or its short form; the whole is then in a new text file, which the short form names."""
    if len(text) <= MOST:
        return text
    *lines, verdict = text.split("\n")
    note = f"... cut here; the whole report, {len(text):,} characters: {in_a_file(text)}"
    left, shown = MOST - len(note) - min(len(verdict), VERDICT) - 2, []
    for line in (cut(line, LINE) for line in lines):
        if (left := left - len(line) - 1) < 0:
            break
        shown.append(line)
    return "\n".join([*shown, note, cut(verdict, VERDICT)])


def cut(line: str, most: int) -> str:
    """Shorten a line to this many characters."""
    return line if len(line) <= most else f"{line[: most - 3]}..."


def in_a_file(text: str) -> str:
    """Write a text to a new file in the system's folder of temporary files; return its path."""
    number, path = tempfile.mkstemp(".txt", "parity-report-")
    with os.fdopen(number, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return path
