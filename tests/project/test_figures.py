"""The figures in README.md and docs/*.md are those of the code."""

import re

import pytest

from jaxformer.bench.results import add_results
from tests.figures import FIGURES, NAMES, ROOT, TABLES, corrected, documents, with_tables
from tests.recipes.test_bench import example


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_every_figure_is_that_of_the_code(path):
    text = path.read_text("utf-8")
    assert set(text.splitlines()) - set(corrected(text).splitlines()) == set(), "write them with `python -m tests.figures`"
    assert corrected(text) == text


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


@pytest.mark.parametrize("mark", TABLES)
def test_every_table_of_speed_stands_in_one_document(mark):
    found = [path.name for path in documents() if f"<!-- {mark} -->\n" in path.read_text("utf-8")]
    assert found == [{"bench": "performance.md", "bench in short": "README.md"}[mark]]


def test_tables_are_written_from_the_measured_results(tmp_path):
    path = tmp_path / "measured.json"
    text = "Before.\n<!-- bench in short -->\nold\n<!-- end -->\nAfter.\n"
    assert with_tables(text, path) == text, "nothing was measured"
    add_results(path, [example()])
    written = with_tables(text, path)
    assert written.startswith("Before.\n<!-- bench in short -->\n\n| work | times as fast |\n")
    assert "| a training step | the work W2 **2.0** |" in written
    assert written.endswith("|\n\n<!-- end -->\nAfter.\n")
    assert with_tables(written, path) == written
