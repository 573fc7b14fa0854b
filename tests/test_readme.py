"""Every command and every line of Python in the README runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
COMMANDS = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
SETUP = COMMANDS[:2]
"""The two that begin on a bare machine: `.ci/run` runs them as they are."""
LATER = [SETUP[0].split(" && ")[-1], *COMMANDS[2:]]
"""All others, after the main job of the first."""

SHORT = "--data text.txt --steps 30 --evaluate-every 15 --save-every 15 --sample 0"
SHORTENED = {
    "-m train.reverse": "--steps 4 --evaluate-every 2 --batch 2 --model.layers rolled",
    "-m train.shakespeare": SHORT,
    "-m train.shakespeare --out runs/mine --steps 1000": SHORT,
    "-m train.shakespeare --out runs/mine --steps 2000 --resume": "--steps 45",
    "-m train.translate": "--preset smoke --data pairs.tsv --steps 2 --evaluate-every 2 --model.vocab-size 300",
    "jaxformer translate": "--beam 3",
    "jaxformer generate runs/mine": "",
    "jaxformer generate runs/reverse-0": "",
    "-m train.qa --seeds 50": "",
    "-m benchmarks.train": "--data text.txt --steps 20 --seeds 3",
    "-m benchmarks.parity": "--presets qa --steps 0",
    "jaxformer parity mutants": None,  # test_mutants.py runs all of it
}
"""How each command is made short: flags that are added, the last one of a kind counting."""


def how(command: str) -> str | None:
    """The longest entry that the command contains."""
    return SHORTENED[max((known for known in SHORTENED if known in command), key=len)]


def test_the_first_two_commands_set_up_from_nothing():
    job, tests = SETUP
    assert job.startswith("python3 -m venv .venv && .venv/bin/pip install -q -e . && .venv/bin/python -m train.reverse")
    assert tests.startswith("python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/pytest")
    ci = (ROOT / ".ci/run").read_text()
    assert "README.md" in ci
    assert "for n in 1 2" in ci


def test_every_command_is_known():
    for command in LATER:
        assert any(known in command for known in SHORTENED), command
    for known in (*SHORTENED, *SAYS):
        assert any(known in command for command in LATER), known


SAYS = {
    "train.reverse": "next: jaxformer generate runs/reverse-0 --prompt ",
    "shakespeare": "next: jaxformer generate runs/",
    "--resume": "resumed at step 30",
    "train.translate": "next: jaxformer translate runs/german ",
    "qa --seeds 50": "of 50 models answer both questions with ",
    "benchmarks.train": "validation loss",
    "benchmarks.parity": "| qa | ",
}
"""What commands print; what is generated or translated may be anything."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("readme")
    (path / "text.txt").write_text("ROMEO: what light through yonder window breaks?\n" * 40)
    (path / "pairs.tsv").write_text("Ein Hund.\tA dog.\n" * 40)
    (path / "sentences.de").write_text("Ein Hund.\nHund\n")
    return path


def test_commands_run_in_order(folder):
    for command in LATER:
        if (more := how(command)) is None:
            continue
        program, *rest = shlex.split(f"{command} {more}")
        start = {".venv/bin/python": [sys.executable], ".venv/bin/jaxformer": [sys.executable, "-m", "jaxformer"]}[program]
        done = subprocess.run(
            [*start, *rest], cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        for words in [words for known, words in SAYS.items() if known in command]:
            assert words in " ".join(done.stdout.split()), f"{command}\n{done.stdout}"
    assert (folder / "runs/mine/weights.safetensors").exists()


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = [block for kind, block in BLOCKS if kind == "python"]
    assert len(blocks) == 6
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert names["logits"].shape == (1, 1, 65)


def test_every_file_named_exists():
    for name in re.findall(r"`((?:jaxformer|torch_ref|parity_tests|tests|train|benchmarks)[\w/]*(?:\.py)?)`", README):
        assert (ROOT / name).exists(), name
