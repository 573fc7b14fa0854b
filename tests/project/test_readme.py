"""Every command and every line of Python in the README and in docs/ runs."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jaxformer.config.presets import PRESETS

ROOT = Path(__file__).parents[2]
DOCUMENTS = {path.name: path.read_text("utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
SETUP, *LATER = [
    line
    for text in DOCUMENTS.values()
    for block in re.findall(r"^```sh\n(.*?)```", text, re.M | re.S)
    for line in block.splitlines()
]
TESTS, *LATER = LATER
"""The two that begin on a bare machine: `.ci/run` runs them as they are. All others come after the main job of the first."""

SMALL = "--model.n-layers 1 --model.d-model 16 --model.n-heads 2 --model.d-ff 32"
SHORT = f"--data text.txt --steps 30 --evaluate-every 15 --save-every 15 --sample 0 --batch 2 --model.context 32 {SMALL}"
SHORTENED = {
    "-m train.reverse": f"--steps 4 --evaluate-every 2 --batch 2 {SMALL}",
    "jaxformer train shakespeare": SHORT,
    "jaxformer train shakespeare --preset cpu": f"--data text.txt --steps 2 --sample 0 --batch 2 {SMALL}",
    "-m train.shakespeare --out runs/mine --steps 1000": SHORT,
    "-m train.shakespeare --out runs/mine --steps 2000 --resume": "--steps 45",
    "-m train.translate": f"--preset smoke --data pairs.tsv --steps 2 --evaluate-every 2 --model.vocab-size 300 {SMALL}",
    "jaxformer translate": "--beam 3",
    "jaxformer generate runs/mine": "",
    "jaxformer convert": "",
    "jaxformer info": "",
    "jaxformer doctor": "",
    "jaxformer generate runs/reverse-0": "",
    "jaxformer train qa --seeds 50": "",
    "jaxformer bench train": "--short --data text.txt --items W1 --peers twin --rounds 1",
    "jaxformer bench generate": None,  # the same way, with sides that test_bench.py runs
    "jaxformer bench start": None,
    "-m benchmarks.parity": "--presets qa --steps 0",
    "-m benchmarks.environments": None,  # `.ci/run` has its short form
    "jaxformer parity mutants": None,  # test_mutants.py runs all of it
}
"""How each command is made short: flags that are added, the last one of a kind counting."""


def how(command: str) -> str | None:
    """The longest entry that the command contains."""
    return SHORTENED[max((known for known in SHORTENED if known in command), key=len)]


def in_order() -> list[str]:
    """A run is trained before it is used, whatever document it stands in."""
    uses = ("generate", "jaxformer translate", "jaxformer convert", "jaxformer info", "jaxformer doctor")
    return sorted([SETUP.split(" && ")[-1], *LATER], key=lambda command: any(use in command for use in uses))


def test_the_first_two_commands_set_up_from_nothing():
    assert SETUP.startswith(
        "python3 -m venv .venv && .venv/bin/pip install -q -e '.[train]' && .venv/bin/python -m train.reverse"
    )
    assert TESTS.startswith("python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/pytest")
    ci = (ROOT / ".ci/run").read_text()
    assert "README.md" in ci
    assert {line.split(">")[0].strip() for line in ci.splitlines()} >= {"run 1", "run 2"}


def test_the_readme_is_short():
    assert len(DOCUMENTS["README.md"].splitlines()) < 140


def test_every_command_is_known():
    for command in in_order():
        assert any(known in command for known in SHORTENED), command
    for known in (*SHORTENED, *SAYS):
        assert any(known in command for command in in_order()), known


SAYS = {
    "train.reverse": "next: jaxformer generate runs/reverse-0 --prompt ",
    "shakespeare": "next: jaxformer generate runs/",
    "--resume": "resumed at step 30",
    "train.translate": "next: jaxformer translate runs/german ",
    "qa --seeds 50": "of 50 models answer both questions with ",
    "bench train": "train W1",
    "benchmarks.parity": "| qa | ",
    "jaxformer convert": "tensors, read again bit for bit",
    "jaxformer info": "family gpt2, of transformers",
    "jaxformer doctor": "EQUAL: ",
}
"""What commands print; what is generated or translated may be anything."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("readme")
    (path / "text.txt").write_text("ROMEO: what light through yonder window breaks?\n" * 40)
    (path / "pairs.tsv").write_text("Ein Hund.\tA dog.\n" * 40)
    (path / "sentences.de").write_text("Ein Hund.\nHund\n")
    return path


ONE_AFTER_ANOTHER = """
import contextlib, io, json, runpy, sys
for module, *flags in json.load(sys.stdin):
    sys.argv, said, code = [module, *flags], io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code or 0
    print(json.dumps([code, said.getvalue()]), flush=True)
    if code:
        break
"""
"""Modules that are run as `python -m` runs them, by one process: each would import and compile for seconds what others have."""


@pytest.mark.slow
@pytest.mark.torch
def test_commands_run_in_order(folder):
    short = {command: shlex.split(f"{command} {more}") for command in in_order() if (more := how(command)) is not None}
    assert {program for program, *_ in short.values()} == {".venv/bin/python", ".venv/bin/jaxformer"}
    modules = [["jaxformer", *rest] if program.endswith("jaxformer") else rest[1:] for program, *rest in short.values()]
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER],
        cwd=folder,
        input=json.dumps(modules),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    for command, (code, said) in zip(short, ends, strict=False):
        assert code == 0, f"{command}\n{done.stderr}"
        for words in [words for known, words in SAYS.items() if known in command]:
            assert words in " ".join(said.split()), f"{command}\n{said}"
    assert (len(ends), done.returncode) == (len(short), 0), done.stderr
    assert (folder / "runs/mine/weights.safetensors").exists()


@pytest.fixture
def small_gpt2(monkeypatch):
    """In the place of the GPT-2 that is downloaded, and of its preset."""
    import transformers

    sizes = {"context": 64, "d_model": 24, "n_layers": 1, "n_heads": 2, "d_ff": 96}
    config = transformers.GPT2Config(n_positions=64, n_embd=24, n_layer=1, n_head=2)
    make = classmethod(lambda kind, name: kind(config))
    monkeypatch.setattr(transformers.GPT2LMHeadModel, "from_pretrained", make)
    monkeypatch.setitem(PRESETS, "gpt2_small", replace(PRESETS["gpt2_small"], **sizes))


LAST = {
    "README.md": lambda names: names["ids"].shape == (1, 20) and names["report"].verdict in DOCUMENTS["README.md"],
    "models.md": lambda names: names["found"].tokens.shape == (1, 1, 10),
    "parity.md": lambda names: names["report"].verdict.startswith("DIFFERENT: norm: torch epsilon 1e-05; jax epsilon 1e-06"),
}
"""What holds after the last line of a document."""


@pytest.mark.first(1)
@pytest.mark.torch
@pytest.mark.parametrize("document", LAST)
def test_python_blocks_run(document, small_gpt2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)```", DOCUMENTS[document], re.M | re.S):
        exec(compile(block, document, "exec"), names)
    assert LAST[document](names)


def test_all_python_is_run():
    assert {name for name, text in DOCUMENTS.items() if "```python" in text} == set(LAST)


def test_every_file_named_exists():
    for text in DOCUMENTS.values():
        for name in re.findall(
            r"`((?:jaxformer|torch_ref|parity_tests|tests|train|benchmarks|docs)(?:/[\w/]*)?(?:\.\w+)?)`", text
        ):
            assert (ROOT / name).exists() or name == "jaxformer", name
