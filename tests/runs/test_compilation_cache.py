"""Compiled programs on disk: a command writes them, and a second one reads them; importing the library does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxformer.cli.commands import COMMANDS
from jaxformer.runtime.compilation_cache import FOLDER, KEPT, LEAST_SECONDS, LOCK, MOST_PROGRAMS, tidy

COMPILES = [
    name
    for name in COMMANDS
    if name
    not in (
        "doctor",
        "families",
        "info",
        "launch",
        "parity dump",
        "parity explain",
        "parity schema",
        "plot losses",
        "plot masks",
        "plot parity",
        "plot positions",
        "runs",
        "runs compare",
        "skill",
    )
    and not name.startswith("bench")
]
"""A benchmark measures starts with a cache of its own, and without; a doctor compiles what is wrong anew."""
COUNTED = """
import jax, sys
from jaxformer.cli.main import main

events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.removeprefix("/jax/compilation_cache/")))
try:
    main()
finally:
    print("written", events.count("cache_misses"), "read", events.count("cache_hits"), file=sys.stderr)
"""


def answer(home: Path, *flags: str, folder: Path | None = None) -> tuple[list[str], int, int]:
    """`jaxformer train qa` of a user with that cache folder: lines on stderr, and how many programs it wrote and read."""
    environment = {name: value for name, value in os.environ.items() if name not in (FOLDER, LEAST_SECONDS)}
    environment |= {"XDG_CACHE_HOME": str(home)} | ({} if folder is None else {FOLDER: str(folder)})
    command = [sys.executable, "-c", COUNTED, "train", "qa", "--epochs", "1", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "models answer both questions" in done.stdout
    *lines, counts = done.stderr.splitlines()
    _, written, _, read = counts.split()
    return lines, int(written), int(read)


def programs(folder: Path) -> list[Path]:
    return list(folder.rglob("*-cache"))


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> tuple[Path, tuple[list[str], int, int]]:
    """The cache folder of a user, and what the first command with it said."""
    folder = tmp_path_factory.mktemp("home")
    return folder, answer(folder)


@pytest.mark.slow
def test_a_second_command_reads_what_the_first_one_wrote(home):
    folder, (lines, written, read) = home
    kept = folder / "jaxformer/compiled"
    assert lines == [f"compiled programs are kept in {kept}; --no-cache keeps none"]
    assert (written, read) == (len(programs(kept)), 0)
    assert written > 0
    assert answer(folder) == (lines, 0, written)


@pytest.mark.slow
def test_no_cache_writes_and_reads_nothing(home, tmp_path):
    folder, _ = home
    before = sorted(path.stat().st_mtime_ns for path in programs(folder))
    assert answer(tmp_path, "--no-cache", folder=folder / "jaxformer/compiled") == ([], 0, 0)
    assert sorted(path.stat().st_mtime_ns for path in programs(folder)) == before
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_folder_of_the_environment_is_used(tmp_path):
    lines, written, _ = answer(tmp_path / "home", folder=tmp_path / "own")
    assert lines == [f"compiled programs are kept in {tmp_path}/own; --no-cache keeps none"]
    assert len(programs(tmp_path / "own")) == written > 0
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path):
    (tmp_path / "file").touch()
    lines, written, read = answer(tmp_path / "file")
    said = f"compiled programs are not kept: {tmp_path}/file/jaxformer/compiled cannot be written: Not a directory"
    assert lines == [f"warning: {said}; set {FOLDER} to another"]
    assert (written, read) == (0, 0)


def test_what_a_killed_process_left_is_removed(tmp_path):
    for name in ("whole-cache", "whole-atime", "half-cache"):
        (tmp_path / name).write_bytes(b"1")
    tidy(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [LOCK, "whole-atime", "whole-cache"]


@pytest.mark.parametrize("more", [0, 1])
def test_of_too_many_the_least_recently_used_are_removed(tmp_path, more):
    for time in range(MOST_PROGRAMS + more):
        (tmp_path / f"{-time % 17}-{time}-cache").touch()
        (tmp_path / f"{-time % 17}-{time}-atime").write_bytes(time.to_bytes(8, "little"))
    tidy(tmp_path)
    left = sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("*-atime"))
    assert left == [*range((MOST_PROGRAMS + 1 - KEPT) * more, MOST_PROGRAMS + more)]
    assert len(programs(tmp_path)) == len(left)


@pytest.mark.parametrize("name", COMPILES)
def test_every_command_that_compiles_has_the_flag(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        COMMANDS[name].run(["--help"])
    assert "--no-cache" in capsys.readouterr().out


def test_importing_the_library_switches_nothing_on(tmp_path):
    code = "import jax, jaxformer.checkpoints.trained, jaxformer.recipes.qa; jax.jit(lambda x: x + 1)(1.0)"
    environment = {name: value for name, value in os.environ.items() if name not in (FOLDER, LEAST_SECONDS)}
    subprocess.run([sys.executable, "-c", code], env=environment | {"XDG_CACHE_HOME": str(tmp_path)}, check=True, timeout=120)
    assert not list(tmp_path.iterdir())
