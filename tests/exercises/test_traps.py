"""Every wrong port of the traps differs, every right one is equal, and their pages are what the command writes."""

import importlib
from pathlib import Path

import pytest

from traps import PAGES, TRAPS, UNNAMED
from traps.pages import FOLDER, INDEX, code_of, index, names_cause, page
from traps.run import report_of

pytestmark = [pytest.mark.foreign, pytest.mark.optimizers]
QUICK = "layers.layer_norm_epsilon", "attention.rotary_pairs", "training.detach"


def trap(name):
    return importlib.import_module(f"traps.{name}")


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in TRAPS if name not in QUICK)])
def test_the_wrong_port_differs_and_the_right_one_is_equal(name):
    wrong, right = (report_of(trap(name), side) for side in ("wrong", "right"))
    assert (wrong.status, right.status) == ("different", "equal"), f"{wrong}\n{right}"
    assert names_cause(wrong) == (name not in UNNAMED), wrong.verdict


def test_there_are_forty():
    files = [path for folder in PAGES for path in (Path(FOLDER).parents[1] / "traps" / folder).glob("[a-z]*.py")]
    assert len({*TRAPS}) == len(files) == 40
    assert {*UNNAMED} < {*TRAPS}


@pytest.mark.parametrize("name", TRAPS)
def test_the_code_of_a_page_is_that_of_the_file(name):
    text = Path(trap(name).__file__).read_text("utf-8")
    parts = code_of(trap(name))
    assert all(part and part in text for part in parts)
    body = text.split('"""', 2)[2]
    left = body
    for part in parts:
        left = left.replace(part, "", 1)
    assert all(not line or line.startswith(("import ", "from ")) for line in left.splitlines()), left


def test_the_index_is_what_the_command_writes():
    assert INDEX.read_text("utf-8") == index()


@pytest.mark.slow
def test_the_pages_are_what_the_command_writes():
    first = 1
    for folder, (_, names) in PAGES.items():
        assert (FOLDER / f"{folder}.md").read_text("utf-8") == page(folder, first)
        first += len(names.split())
