"""The figures in README.md and docs/*.md are those of the code."""

import re

import pytest

from tests.figures import FIGURES, NAMES, ROOT, corrected, documents


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_figure_is_that_of_the_code(path):
    text = path.read_text("utf-8")
    wrong = [old for old, new in zip(text.splitlines(), corrected(text).splitlines(), strict=True) if old != new]
    assert wrong == [], "write them with `python -m tests.figures`"


@pytest.mark.parametrize("pattern", FIGURES)
def test_every_figure_is_quoted_somewhere(pattern):
    assert any(re.search(pattern, path.read_text("utf-8")) for path in documents())


@pytest.mark.parametrize("name", NAMES)
def test_every_family_is_named_somewhere(name):
    assert any(f"`{name}`" in path.read_text("utf-8") for path in documents())


def test_wrong_figures_are_written_anew():
    """And the README is among the files that are read."""
    assert ROOT / "README.md" in documents()
    for pattern, numbers in FIGURES.items():
        right = pattern.replace("s?", "s").replace("\\(", "(").replace("\\)", ")")
        for number in numbers:
            right = right.replace(r"(\d+)", str(number), 1)
        text = f"It says {right}, in 5 lines."
        assert corrected(re.sub(r"\d+(?=.*in 5)", "9999", text)) == text
