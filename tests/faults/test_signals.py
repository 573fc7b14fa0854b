"""A signal at any moment ends a command with 130 or 143 and a word, and leaves nothing half-written."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax.numpy as jnp
import pytest

from jaxformer.runs.checkpoint import load_state
from jaxformer.runtime import shutdown
from jaxformer.training.step import TrainState

EVALUATING = """
import sys, time
from dataclasses import replace
from pathlib import Path
import jax, jax.numpy as jnp
from rich.console import Console
from jaxformer.runtime.shutdown import listen
from jaxformer.training.loop import Plan, fit
from jaxformer.runs.folder import RunFolder
from jaxformer.training.step import TrainState
listen()
def evaluate(model):
    print("evaluating", flush=True)
    time.sleep(60)
take = jax.jit(lambda s, n: TrainState(s.step + n, jax.tree.map(lambda x: 2 * x, s.model), ()), donate_argnums=0)
plan = Plan(steps=10, evaluate_every=4, save_every=9, tokens_per_step=1, evaluate=evaluate, on_evaluate=print)
state = TrainState(jnp.int32(0), {"w": jnp.ones(2)}, ())
fit(state, plan, RunFolder.create(Path(sys.argv[1]), {}), lambda state, n: (take(state, n), 1.0), Console(quiet=True))
"""
WRITING = """
import sys, time
from pathlib import Path
from jaxformer.runtime.shutdown import listen
from jaxformer.runs.lock import only_writer
from jaxformer.io.atomic import written_whole
listen()
with only_writer(Path(sys.argv[1])), written_whole(Path(sys.argv[1]) / "file") as unfinished:
    unfinished.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""
PLAIN = WRITING.replace("listen()\n", "")
FINISHING = """
import os, signal, time
from jaxformer.cli.flags import run
from jaxformer.runtime.shutdown import cleaned_up, listen
def main(arguments):
    with cleaned_up(lambda: time.sleep(0.3)):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
listen()
run(main)
"""
INTERRUPTED = """
import os, runpy, signal, sys
class Finder:
    def find_spec(name, path, target=None):
        if name == imported:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
_, command, imported = sys.argv
sys.argv = ["-m", "--help"]  # as `python -m` has it while it looks for the module
runpy.run_module(command, run_name="__main__")
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], text=True, **pipes)


def begun(code: str, folder: Path) -> subprocess.Popen[str]:
    """The process, once it has said that it is in its midst."""
    process = start(code, folder)
    assert process.stdout
    assert process.stdout.readline().endswith("ing\n")
    return process


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Processes that tests start heed SIGHUP, though the tests themselves may run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_nothing_half_written_is_left(tmp_path, number, code):
    process = begun(WRITING, tmp_path / "run")
    process.send_signal(number)
    _, said = process.communicate(timeout=5)
    assert (process.returncode, said) == (code, f"stopped by {shutdown.SIGNALS[number]}\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("code", [WRITING, EVALUATING], ids=["writing", "held"])
def test_a_signal_that_the_process_was_started_to_ignore(tmp_path, code):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts what runs in the background
    try:
        process = begun(code, tmp_path / "run")
    finally:
        signal.signal(signal.SIGINT, before)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGTERM)
    assert "Ctrl-C" not in process.communicate(timeout=5)[1]
    assert process.returncode == 143


def test_without_listening_it_is(tmp_path):
    """The control."""
    process = begun(PLAIN, tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=5)[1] == ""
    unfinished = next((tmp_path / "run").glob("file.*.unfinished")).name
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [unfinished, "run.lock"]


@pytest.mark.slow
def test_a_run_that_evaluates_is_saved_by_another_thread(tmp_path):
    process = begun(EVALUATING, tmp_path / "run")
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert time.monotonic() - start < 5
    assert process.returncode == 143
    first, last = said.splitlines()
    assert first == "SIGTERM: the run ends after this step, saved if it can be; once more ends it at once"
    assert last == f"stopped at step 4, saved; continue with --resume --out {tmp_path / 'run'}"
    state = load_state(tmp_path / "run/checkpoints", TrainState(jnp.int32(0), {"w": jnp.ones(2)}, ()))
    assert (int(state.step), state.model["w"].tolist()) == (4, [8.0, 8.0])


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(tmp_path):
    process = begun(EVALUATING, tmp_path / "run")
    process.send_signal(signal.SIGINT)
    assert process.stderr
    process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=2)[1] == "ended at once by SIGTERM\n"
    assert process.returncode == 143
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["0"]


def catches(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether a process has a handler of its own for this signal."""
    mask = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return mask is not None and bool(int(mask[1], 16) >> (number - 1) & 1)


def test_whoever_imports_a_script_keeps_ctrl_c():
    code = "import signal; signal.signal(2, mine := lambda *_: None); import train; assert signal.getsignal(2) is mine"
    code += "; signal.signal(2, signal.default_int_handler); import importlib; importlib.reload(train)"
    code += "; assert signal.getsignal(2) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_from_the_first_line_on(tmp_path, text_file):
    """While modules are imported: as soon as there is a handler of SIGTERM, which Python itself has not, and later."""
    arguments = ["-m", "train.shakespeare", "--data", str(text_file), "--out", str(tmp_path / "run")]
    for delay in (0, 0.7):
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while process.poll() is None and not catches(process, signal.SIGTERM):
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=5)[1]
        assert (process.returncode, said) == (130, "stopped by Ctrl-C\n")
        assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "imported"),
    [
        ("jaxformer", "jaxformer.runtime.shutdown"),
        ("jaxformer", "jaxformer.cli.flags"),
        ("train.reverse", "dataclasses"),
        ("train.reverse", "tyro"),
    ],
)
def test_an_interrupt_while_a_module_is_imported(command, imported):
    process = start(INTERRUPTED, command, imported)
    assert process.communicate(timeout=20)[1] == "stopped by Ctrl-C\n"
    assert process.returncode == 130


@pytest.mark.parametrize("delay", [0.02, 0.04, 0.08, 0.16, 0.32])
def test_an_interrupt_soon_after_the_start(delay):
    """Python starts for 20 ms and more, and imports the command's module, which takes one: an interrupt in them is Python's own
    to tell.
    """
    arguments = [sys.executable, "-m", "train.reverse", "--help"]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)[1]
    later = re.sub(r"/jaxformer/(cli/)?(__init__|main)\.py", "", said)
    assert (process.returncode, said) == (130, "stopped by Ctrl-C\n") or "/jaxformer/" not in later


def test_an_interrupt_while_the_command_comes_to_its_end():
    process = start(FINISHING)
    assert process.communicate(timeout=20)[1] == "stopped by Ctrl-C\n"
    assert process.returncode == 130


def test_an_early_interrupt_that_the_process_was_started_to_ignore():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start(INTERRUPTED, "jaxformer", "jaxformer.cli.flags")
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.communicate(timeout=20)[1] == ""
    assert process.returncode == 0


def test_held_work_does_not_go_on_while_it_is_rescued(monkeypatch):
    """Python that ended under a thread which is in jax would abort."""
    begun, done = threading.Event(), []

    def rescue() -> str:
        begun.set()
        time.sleep(0.2)
        done.append("rescued")
        raise RuntimeError  # else the process would end

    monkeypatch.setattr(shutdown, "PATIENCE", 0)
    with shutdown.held(rescue) as work:
        threading.Thread(target=shutdown._rescue, args=(work, 15), daemon=True).start()
        assert begun.wait(5)
    assert done


def test_a_terminal_that_goes_away_sends_several_and_ends_no_work_at_once(monkeypatch, capfd):
    def end(code: int, said: str) -> None:
        raise SystemExit(code, said)

    reading, writing = os.pipe()
    os.write(writing, bytes([signal.SIGHUP, signal.SIGHUP, signal.SIGTERM]))
    for name, value in {"_held": [shutdown.Held(str)], "_received": [], "_rescue": lambda *_: None, "end": end}.items():
        monkeypatch.setattr(shutdown, name, value)
    os.close(writing)
    with os.fdopen(reading), pytest.raises(SystemExit) as ended:
        shutdown._watch(reading)
    assert ended.value.args == (143, "ended at once by SIGTERM")
    assert capfd.readouterr().err == "SIGHUP: the run ends after this step, saved if it can be; once more ends it at once\n"


@pytest.mark.slow
def test_timeout_sends_one_to_the_process_and_one_to_its_group(tmp_path):
    """Both are one."""
    process = begun(EVALUATING, tmp_path / "run")
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 143
    assert said.splitlines()[-1] == f"stopped at step 4, saved; continue with --resume --out {tmp_path / 'run'}"


def test_a_library_leaves_signals_to_its_user():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    import jaxformer.cli.main
    import jaxformer.training.loop  # noqa: F401

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
