"""Where a process may open few files, a checkpoint is refused in one line: orbax's threads would wait for ever."""

import re
import resource
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from jaxformer.errors import CheckpointError
from jaxformer.io.atomic import DESCRIPTORS
from jaxformer.runs.checkpoint import save_state, verdict
from jaxformer.runs.folder import RUN, RunFolder

STATE = {"w": np.zeros(3, np.float32)}
SAYS = rf"it takes up to {DESCRIPTORS} open files, and this process may open \d+; allow more: ulimit -n 256"


@contextmanager
def few_files(free: int):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as probes:  # the numbers that are free need not follow each other
        last = max(probes.enter_context(open("/dev/null")).fileno() for _ in range(free))
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_a_checkpoint(tmp_path):
    run = RunFolder.create(tmp_path / "run", {RUN: "abc"})
    save_state(run.checkpoints, 1, STATE)
    with few_files(5):
        with pytest.raises(CheckpointError) as caught:
            save_state(run.checkpoints, 2, STATE)
        said = verdict(run.checkpoints, 1)
    assert re.fullmatch(rf"not checked: cannot be read: \[Errno 24\] {SAYS}: 'a checkpoint'", said)
    assert re.fullmatch(f"{run.checkpoints}/2 cannot be written: {SAYS}", str(caught.value))
    assert [path.name for path in run.checkpoints.iterdir()] == ["1"]


@pytest.mark.slow
def test_a_command(tmp_path):
    limited = "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)); "
    code = limited + "runpy.run_module('train.reverse', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, "--out", tmp_path / "run", "--steps", "2"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"a checkpoint: it takes up to {DESCRIPTORS} open files, and this process may open ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
