"""One run folder has one writer."""

import errno
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import jax.numpy as jnp
import pytest

from jaxformer.errors import CheckpointError, InputError
from jaxformer.recipes import reverse
from jaxformer.runs import lock
from jaxformer.runs.checkpoint import save_state
from jaxformer.runs.folder import RunFolder
from jaxformer.runs.lock import LOCK, only_writer

HOLD = """
import sys
from pathlib import Path
from jaxformer.runs.lock import only_writer
with only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def start(folder: Path) -> subprocess.Popen[str]:
    """A process that holds the lock until its input ends, if it gets it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], text=True, **pipes)


@pytest.fixture
def owner(tmp_path):
    """A process that holds the lock."""
    process = start(tmp_path / "run")
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught, only_writer(folder):
        pass
    return str(caught.value)


def test_the_owner_is_named_and_its_folder_left_alone(owner, tmp_path):
    said = refused(tmp_path / "run")
    begin = f"{tmp_path}/run is being written by process {owner.pid} on {socket.gethostname()} since "
    assert re.fullmatch(
        re.escape(begin) + r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d; let it end, or name another folder with --out", said
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]
    assert refused(tmp_path / "run") == said


def test_whoever_ends_frees_it(owner, tmp_path):
    owner.communicate("")
    assert owner.returncode == 0
    assert not (tmp_path / "run").exists()
    with only_writer(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).read_text().startswith(f"process {os.getpid()} on ")
        assert str(os.getpid()) in refused(tmp_path / "run")
    with pytest.raises(ZeroDivisionError), only_writer(tmp_path / "run"):
        _ = 1 / 0
    with only_writer(tmp_path / "run"):
        pass


def test_a_lock_that_somebody_removes_frees_nothing(owner, tmp_path):
    (tmp_path / "run" / LOCK).unlink()
    said = refused(tmp_path / "run")
    assert said.startswith(f"{tmp_path}/run is being written by another process, though its run.lock was removed; let")
    assert not (tmp_path / "run" / LOCK).exists()
    owner.communicate("")
    with only_writer(tmp_path / "run"):
        pass


def test_a_link_is_no_lock(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "other").write_text("precious")
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "other")
    wanted = f"{tmp_path}/run/{LOCK} is a link, a pipe or a folder, and no lock of a run; remove it"
    assert refused(tmp_path / "run") == wanted
    assert (tmp_path / "other").read_text() == "precious"


def test_a_pipe_is_no_lock(tmp_path):
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / LOCK)
    assert f"run/{LOCK} is a link, a pipe or a folder, and no lock of a run; remove it" in refused(tmp_path / "run")


def test_a_dead_owner_is_followed(owner, tmp_path):
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert str(owner.pid) in (tmp_path / "run" / LOCK).read_text()
    with only_writer(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK).read_text().startswith(f"process {os.getpid()} on ")


def test_of_those_that_start_at_once_one_gets_it(tmp_path):
    processes = [start(tmp_path / "run") for _ in range(4)]
    outputs = [process.stdout for process in processes]
    said = [output.readline() for output in outputs if output]
    assert sorted(said) == ["", "", "", "held\n"]
    winner = processes[said.index("held\n")]
    errors = [process.communicate("")[1] for process in processes if process is not winner]
    assert all("is being written by " in error for error in errors)
    winner.communicate("")
    assert winner.returncode == 0


def test_without_the_lock_both_write(owner, tmp_path, monkeypatch):
    """The control."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with only_writer(tmp_path / "run"):
        pass


def test_every_recipe_asks_first(owner, tmp_path, refusal, text_file, monkeypatch):
    from jaxformer.cli.main import dispatch

    for name in ("shakespeare", "reverse", "translate"):
        module = __import__(f"jaxformer.recipes.{name}", fromlist=["train"])
        monkeypatch.setattr(module, "train", lambda *_: pytest.fail("it trained"))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("ein Hund\ta dog\n" * 20)
    for name, data in (("shakespeare", ["--data", text_file]), ("reverse", []), ("translate", ["--data", pairs])):
        said = refusal(dispatch, ["train", name, "--out", str(tmp_path / "run"), *map(str, data)])
        assert f"is being written by process {owner.pid} on " in said


def test_a_resume_beside_a_live_run_writes_nothing(owner, tmp_path, refusal):
    run = RunFolder.create(tmp_path / "run", {"recipe": asdict(reverse.PRESETS["quick"])})
    run.log({"step": 7})
    run.checkpoints.mkdir()
    before = {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    said = refusal(reverse.main, ["--resume", "--out", str(run.path)])
    assert f"is being written by process {owner.pid} on " in said
    assert {path: path.read_bytes() for path in run.path.iterdir() if path.is_file()} == before


def test_a_file_that_its_owner_removes_meanwhile_is_no_lock(tmp_path, monkeypatch):
    """Whoever opened the file before its owner removed it locks nothing, and has to look again."""
    flock, path = fcntl.flock, tmp_path / LOCK

    def removed_first(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        path.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with only_writer(tmp_path):
        assert str(os.getpid()) in path.read_text()
        assert str(os.getpid()) in refused(tmp_path)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", none)
    said = r"run: its file system has no locks \(No locks available\); see that no other process writes this run$"
    with pytest.warns(UserWarning, match=said), only_writer(tmp_path / "run"):
        pass


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "gone", [shutil.rmtree, lambda folder: folder.rename(folder.with_name("old"))], ids=["removed", "moved"]
)
def test_who_lost_its_folder_writes_nothing_into_the_next(gone, tmp_path):
    folder = tmp_path / "run"
    with only_writer(folder):
        run = RunFolder.create(folder, {"mine": 1})
        run.log({"step": 1})
        another = shutil.copytree(folder, tmp_path / "another")
        gone(folder)
        another.rename(folder)
        (folder / LOCK).write_text("of the other")
        before = {path: path.read_bytes() for path in folder.iterdir()}
        said = r"run was moved or removed while it was written; nothing more is written there$"
        for write in (lambda: run.log({"step": 3}), lambda: run.write_config({}), lambda: run.manifest.remove(run.weights)):
            with pytest.raises(CheckpointError, match=said):
                write()
        with pytest.raises(CheckpointError, match=said):
            save_state(run.checkpoints, 4, {"step": jnp.int32(4)})
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_where_no_name_can_be_written_nothing_is_left(tmp_path):
    process = subprocess.run([sys.executable, "-c", FULL + HOLD, tmp_path / "run"], capture_output=True, text=True)
    assert f"InputError: {tmp_path}/run cannot be written: File too large; name another folder with" in process.stderr
    assert not (tmp_path / "run").exists()


def test_an_owner_without_a_name_is_not_waited_for_long(owner, tmp_path, monkeypatch):
    (tmp_path / "run" / LOCK).write_bytes(b"")
    monkeypatch.setattr(lock, "PATIENCE", 0.05)
    assert refused(tmp_path / "run").startswith(f"{tmp_path}/run is being written by another process; let it end")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    said = refused(tmp_path / "file/run")
    assert said == f"{tmp_path}/file/run cannot be written: Not a directory; name another folder with --out"
