"""A killed process loses at most what came after its last checkpoint."""

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxformer.training.runs import RunFolder
from tests.tiny import flags

ROOT = Path(__file__).parents[1]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "train.shakespeare", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def newest(out: Path) -> int:
    """The last committed step; 0 before there is one."""
    steps = [int(path.name) for path in (out / "checkpoints").glob("*") if path.name.isdecimal()]
    return max(steps, default=0)


def killed_after_a_save(arguments: list[str], out: Path, delay: float) -> None:
    """Run until one more checkpoint is there, and `delay` seconds; then SIGKILL."""
    before, process = newest(out), start(arguments)
    try:
        deadline = time.monotonic() + 120
        while newest(out) == before:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == -signal.SIGKILL


def killed(times: int, text_file: Path, out: Path) -> None:
    draw = random.Random(0)
    begin = flags(data=text_file, out=out, steps=1_000_000, save_every=7, evaluate_every=1_000_000)
    for i in range(times):
        before = newest(out)
        killed_after_a_save(["--resume", "--out", str(out)] if i else begin, out, draw.uniform(0, 0.5))
        assert newest(out) > before
    last = newest(out)
    done = start(["--resume", "--out", str(out), "--steps", str(last + 20)])
    said, error = done.communicate(timeout=120)
    assert done.returncode == 0, error
    assert error.startswith("compiled programs are kept in")
    assert error.count("\n") == 1
    assert f"resumed at step {last:,}" in said
    steps = [line["step"] for line in RunFolder.open(out).metrics]
    assert steps == sorted(set(steps))
    assert steps[-1] == last + 20
    assert all(line["val_loss"] < 10 for line in RunFolder.open(out).metrics)


def test_killed_three_times(text_file, tmp_path):
    killed(3, text_file, tmp_path / "run")


@pytest.mark.slow
def test_killed_forty_times(text_file, tmp_path):
    for i in range(4):
        killed(10, text_file, tmp_path / str(i))
        shutil.rmtree(tmp_path / str(i))
