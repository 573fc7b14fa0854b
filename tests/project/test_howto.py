"""Every command and block of code of docs/howto/ runs, and prints what the page shows; refusals say what its tables say."""

import os
import re
from pathlib import Path

import pytest

from jaxformer.cli.main import dispatch
from jaxformer.errors import JaxformerError
from tests.pages import ROOT, Block, Page, blocks, programs, run_page

PAGES = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "docs/howto").glob("*.md"))}
LANGUAGES = {"python", "sh", "text", "diff", "yaml"}

SMALL = "--model.n-layers 1 --model.d-model 16 --model.n-heads 2 --model.d-ff 32"
SHORT = {
    "train shakespeare": "--save-every 15 --evaluate-every 15 --sample 0 --batch 4",
    "--data text.txt": "--steps 30",
    "--out runs/mesh": SMALL,
    "--resume --steps 10000": "--steps 45",
    "train translate": f"--steps 2 --evaluate-every 2 --model.vocab-size 300 {SMALL}",
}
"""Part of a command -> the flags that make it short."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that a reader has."""
    (tmp_path / "text.txt").write_text("ROMEO: what light through yonder window breaks?\n" * 60)
    (tmp_path / "pairs.tsv").write_text("Ein Hund.\tA dog.\n" * 40)
    for split in ("train", "val"):
        (tmp_path / f"{split}.de").write_text("Ein Hund.\nEine Katze.\n" * 20)
        (tmp_path / f"{split}.en").write_text("A dog.\nA cat.\n" * 20)
    (tmp_path / "sentences.de").write_text("Ein Hund.\nHund\n")
    return tmp_path


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs(name, folder, tmp_path_factory):
    found = run_page(PAGES[name], folder, programs(tmp_path_factory.mktemp("programs") / "bin"), SHORT)
    assert any(block.language in ("sh", "python") for block in found)


def test_every_block_is_of_a_kind_that_runs():
    for name, text in PAGES.items():
        assert {block.language for block in blocks(text)} <= LANGUAGES, name
        assert text.count("\n```") == 2 * len([*blocks(text)]), f"{name}: a block that is indented or not closed"


def test_what_ci_runs_is_a_command_of_the_page():
    for name, text in PAGES.items():
        commands = {line for block in blocks(text) if block.language == "sh" for line in block.text.splitlines()}
        for block in blocks(text):
            if block.language == "yaml":
                ran = [line for line in re.findall(r"- run: (.*)", block.text) if not line.startswith("pip install")]
                assert ran, name
                assert {*ran} <= commands, name


BAD = {
    "empty.txt": b"",
    "short.txt": b"abc\n",
    "latin.txt": "Grüße\n".encode("latin-1") * 200,
    "words.docx": b"PK\x03\x04" + bytes(range(256)) * 20,
    "notab.tsv": b"Ein Hund.\tA dog.\nEine Katze A cat.\n",
    "twotabs.tsv": b"Ein Hund.\tA dog.\tx\n",
    "a.de": b"Ein Hund.\n" * 10,
    "a.en": b"A dog.\n" * 9,
    "few.tsv": b"Ein Hund.\tA dog.\n",
}
REFUSED = {
    "train-text": ("train shakespeare", ["nothing.txt", "empty.txt", "short.txt", "latin.txt", "words.docx"]),
    "translate-pairs": ("train translate", ["nothing.tsv", "notab.tsv", "twotabs.tsv", "a.de a.en", "few.tsv"]),
}
"""Page -> the command, and the files that it refuses."""


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_file_gets_the_line_that_the_page_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file, content in BAD.items():
        (tmp_path / file).write_bytes(content)
    command, cases = REFUSED[name]
    said = [_refusal([*command.split(), "--data", *case.split(), "--out", "run"]) for case in cases]
    shown = re.findall(r"^\| (?:that|with|in|of) .*? \| `(.*?)`(?! \(a warning\))", PAGES[name], re.M)
    assert len(shown) == len(cases)
    for line, words in zip(said, shown, strict=True):
        assert words in line.replace(f"{tmp_path}{os.sep}", ""), line


def _refusal(arguments: list[str]) -> str:
    with pytest.raises(JaxformerError) as error:
        dispatch(arguments)
    return str(error.value)


def test_a_page_that_is_wrong_is_told(tmp_path):
    page = Page(tmp_path, tmp_path, {"echo": "-n"})
    page.run(Block("sh", "printf 'a  b 12 c'\n"), "")
    page.check("a b ... c\nb 12")
    with pytest.raises(AssertionError, match="is not in"):
        page.check("a b\nb 13")
    with pytest.raises(AssertionError, match="false"):
        page.run(Block("sh", "false\n"), "")
    page.run(Block("sh", "false\n"), "DIFFERENT: ...")
    assert page.shortened("echo 1") == "echo 1 -n"


def test_a_block_of_lines_changes_the_file_that_has_them(tmp_path):
    page = Page(tmp_path, tmp_path, {})
    page.run(Block("python", "# one.py\nx = 1\ny = 2\n"), "")
    page.run(Block("python", "# two.py\nx = 3\n"), "")
    page.run(Block("diff", "-x = 1\n-y = 2\n+x = 4\n"), "")
    assert ((tmp_path / "one.py").read_text(), (tmp_path / "two.py").read_text()) == ("# one.py\nx = 4\n", "# two.py\nx = 3\n")
    with pytest.raises(ValueError, match="not enough values"):
        page.run(Block("diff", "-z = 1\n+z = 2\n"), "")
