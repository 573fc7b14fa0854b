"""What is no file, no table, or read by nobody ends a command in one line of ours, never in another library's error."""

import io
import json
import os
import re
import sys
import types
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from jaxformer.checkpoints.describe import certificate_of
from jaxformer.cli.flags import run
from jaxformer.cli.parity import dump, explain
from jaxformer.cli.parity_flags import no_exit
from jaxformer.errors import CheckpointError, InputError, JaxformerError
from jaxformer.recipes.prepare import differences, recipe_of
from jaxformer.recipes.settings import Shakespeare
from jaxformer.recipes.shakespeare import PRESETS
from jaxformer.runs.folder import RunFolder
from jaxformer.runtime.stdio import restore_streams


@pytest.mark.parametrize("say", [print, lambda text: Console().print(text)], ids=["print", "rich"])
def test_whoever_reads_has_seen_enough(say, monkeypatch):
    """Standard output is a pipe whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr("sys.argv", ["command"])
    with suppress(BrokenPipeError), os.fdopen(writing, "w", buffering=1) as file:
        monkeypatch.setattr("sys.stdout", file)
        with pytest.raises(SystemExit) as stop:
            run(lambda _: say("much"))
    assert stop.value.code == 141


def test_an_exit_of_its_own_keeps_its_code(monkeypatch):
    monkeypatch.setattr("sys.argv", ["command"])
    with pytest.raises(SystemExit) as stop:
        run(lambda _: sys.exit(3))
    assert stop.value.code == 3


class Odd(BaseException):
    """Nothing that `except Exception` takes."""


@pytest.mark.parametrize(
    ("error", "says"), [(SystemExit(0), "ends the process with sys.exit(0); take that out"), (Odd("no"), "fails: Odd: no")]
)
def test_a_users_model_never_ends_a_comparison_as_equal(error, says):
    with pytest.raises(InputError, match=re.escape(f"mine:model {says}")), no_exit("mine:model"):
        raise error


class EndingError(Exception):
    """Its message ends the process."""

    def __str__(self):
        sys.exit(0)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's."""
    module = types.ModuleType("mine")
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def raised(*_):
    raise EndingError


def test_an_error_whose_message_ends_the_process(mine, refusal):
    mine.model, mine.pair = raised, lambda: type("Pair", (tuple,), {"__iter__": raised})((1, 2))
    for name in ("model", "pair"):
        assert refusal(dump, [f"mine:{name}", "out", "--vocab", "9"]).startswith(
            f"mine:{name} fails: EndingError: EndingError (at "
        )


@pytest.mark.parametrize("error", [RuntimeError, Warning, MemoryError, EndingError])
def test_what_ends_a_command_is_told_whatever_its_message_does(error, monkeypatch):
    monkeypatch.setattr("sys.argv", ["command"])
    with pytest.raises(SystemExit) as stop:
        run(lambda _: raise_(type("Odd", (error,), {"__str__": EndingError.__str__})()))
    assert stop.value.code == 2


def raise_(error):
    raise error


@pytest.mark.parametrize("other", [None, io.StringIO()])
def test_streams_that_the_users_code_has_put_in_their_place(other, monkeypatch, capfd):
    """What is to be said goes where it always does."""
    monkeypatch.setattr("sys.argv", ["command"])
    for number, name in ((1, "stdout"), (2, "stderr")):
        monkeypatch.setattr(sys, name, os.fdopen(number, "w", 1, closefd=False))

    def main(_):
        sys.stdout = sys.stderr = other
        restore_streams()
        print("EQUAL")
        sys.stdout = sys.stderr = other
        raise InputError("no")

    with pytest.raises(SystemExit) as stop:
        run(main)
    assert (stop.value.code, *capfd.readouterr()) == (2, "EQUAL\n", "no\n")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_the_users_code_has_closed(stream, monkeypatch, capfd):
    """It is no traceback, and never exit code 1, which would be "different"."""
    monkeypatch.setattr("sys.argv", ["command"])
    opened = {name: os.fdopen(number, "w", 1, closefd=False) for name, number in (("stdout", 1), ("stderr", 2))}
    for name, file in opened.items():
        monkeypatch.setattr(sys, name, file)

    def main(_):
        getattr(sys, stream).close()
        print("EQUAL")
        raise InputError("no")

    with pytest.raises(SystemExit) as stop:
        run(main)
    said = {"stdout": "standard output is closed, by code that ran here; take that out\n", "stderr": "no\n"}
    assert (stop.value.code, capfd.readouterr().err) == (2, said[stream])


@pytest.mark.parametrize("name", ["/dev/zero", "pipe"])
def test_a_report_that_never_ends(name, tmp_path, refusal):
    os.mkfifo(tmp_path / "pipe")
    assert refusal(explain, [str(tmp_path / name)]) == f"{tmp_path / name} is a pipe or a device; give a file"


@pytest.mark.parametrize("name", ["metrics.jsonl", "manifest.json", "config.json"])
def test_a_file_of_a_run_that_never_ends(name, tmp_path):
    """Also under a manifest, which has the sha256 of config.json."""
    folder = RunFolder.create(tmp_path / "run", {})
    (folder.path / name).unlink(missing_ok=True)
    os.mkfifo(folder.path / name)
    with pytest.raises(JaxformerError, match=rf"{name} is a pipe or a device; give a file"):
        print(folder.config, folder.metrics)


@pytest.mark.usefixtures("untyped")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("data", "data = 7 is an int; give a file, or a corpus by its name"),
        ("mesh", "mesh = 7 is an int; give axes and sizes, as data=4,tensor=2"),
        ("steps", "steps = '7' is not a whole number; give an integer of at least 1"),
        ("model", "7 is no GPTConfig"),
    ],
)
def test_a_setting_of_another_kind(name, said, tmp_path):
    recipe = {**json.loads(json.dumps(vars(PRESETS["tiny"]), default=vars)), name: "7" if name == "steps" else 7}
    (tmp_path / "config.json").write_text(json.dumps({"recipe": recipe}))
    with pytest.raises(CheckpointError) as caught:
        recipe_of(tmp_path, Shakespeare)
    assert str(caught.value) == f"{tmp_path}/config.json does not describe this recipe: {said}"


@pytest.mark.parametrize("before", [7, None, [], "text"])
def test_an_environment_that_is_no_table_says_nothing(before):
    assert differences(before, {"jax": "0.9"}) == []


def test_the_certificate_of_a_file_is_beside_it_and_has_its_name(tmp_path):
    assert certificate_of(tmp_path) == tmp_path / "parity.json"
    assert certificate_of(tmp_path / "it.safetensors") == Path(tmp_path, "it.safetensors.parity.json")
