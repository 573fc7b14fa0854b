"""What is done to one of two processes that train one model, each time with the same end: all are gone, and told why."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.faults.kills import left, newest
from tests.faults.processes import BIG, TEXT, last_words

FLAGS = (
    *("--batch=2", "--evaluate-every=20", "--save-every=20", "--sample=0", "--model.context=16"),
    *("--model.d-model=8", "--model.n-heads=2", "--model.n-layers=2", "--model.d-ff=16"),
)

LONGEST = 60
"""Seconds in which all processes have to be gone."""
GONE = r"process {} of 2 \(pid \d+ on .*\) "


class Fault(NamedTuple):
    """What happens, to which process, and what the others have to say."""

    number: int
    happens: signal.Signals | str
    """A signal, or what the process does itself after some steps."""
    said: str
    place: str = "step.TrainSteps.__call__"
    """The function that it happens in, where the process does it itself."""


KILLED, STOPPED = "is gone without a word: it was killed, or it crashed", "has not been heard of for 20 s: it is stopped"
STUCK = r" \d+ has not ended for [3-5]\d s .*: process 0 of 2 \(.*\) is at .*, process 1 of 2 \(.*\) is at faulty \(.*:\d+\)"
SLEEP = "time.sleep(1e6)"
FAULTS = {
    "worker killed": Fault(1, signal.SIGKILL, GONE.format(1) + KILLED),
    "coordinator killed": Fault(0, signal.SIGKILL, GONE.format(0) + KILLED),
    "worker stopped": Fault(1, signal.SIGSTOP, GONE.format(1) + STOPPED),
    "stuck": Fault(1, SLEEP, "step" + STUCK),
    "stuck in an evaluation": Fault(1, SLEEP, "the evaluation of step" + STUCK, "loop._Course.evaluate"),
    "stuck in a checkpoint": Fault(1, SLEEP, "the checkpoint of step" + STUCK, "loop.save_state"),
    "an exception": Fault(1, "1 / 0", GONE.format(1) + "ended: ZeroDivisionError: division by zero"),
    "an exit": Fault(1, "sys.exit(3)", GONE.format(1) + "ended: it exited with 3"),
    "SIGTERM": Fault(1, signal.SIGTERM, r"stopped at step \d+, saved; continue with --resume"),
}
INJECTED = """
import sys, time
if "--process=1" in sys.orig_argv:
    from jaxformer.training import loop, step
    def faulty(*given, whole={place}):
        if {step} >= 40:
            open({mark!r}, "w").close()
            {happens}
        return whole(*given)
    {place} = faulty
"""
"""A sitecustomize.py: process 1 does something after 40 steps, and marks when."""
STEPS = {
    "step.TrainSteps.__call__": "int(given[1].step)",
    "loop._Course.evaluate": "given[0].step",
    "loop.save_state": "given[1]",
}
"""Where the arguments of a function say which step it is."""


def begun(process: subprocess.Popen[str], out: Path) -> None:
    """Until the run has a checkpoint, or has ended."""
    while process.poll() is None and newest(out) < 0:
        time.sleep(0.01)


def start(out: Path, *more: str, path: Path | None = None) -> subprocess.Popen[str]:
    """The recipe in two processes of one device each."""
    (text := out.parent / "text.txt").write_text(TEXT)
    begin = () if "--resume" in more else ("--data", str(text), "--mesh=data=2", *FLAGS)
    command = [sys.executable, "-m", "jaxformer", "launch", "--processes=2", "--devices=1", "--", "train", "shakespeare"]
    environment = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [path and str(path), os.environ.get("PYTHONPATH")]))
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, *begin, "--out", str(out), *more], text=True, env=environment, **pipes)


def children(process: subprocess.Popen[str]) -> list[int]:
    """The ids of the processes that the launcher started, in their order."""
    return [int(each) for each in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def suffers(fault: Fault, out: Path, *more: str) -> list[str]:
    """Let it happen after the first checkpoint; what was wrong."""
    path, mark = None, out.parent / "happened"
    if isinstance(fault.happens, str):
        path, given = out.parent, {"place": fault.place, "step": STEPS[fault.place], "happens": fault.happens}
        (path / "sitecustomize.py").write_text(INJECTED.format(**given, mark=str(mark)))
    process = start(out, f"--steps={BIG}", *more, path=path)
    begun(process, out)
    time.sleep(2)
    ids = children(process)
    if isinstance(fault.happens, signal.Signals):
        os.kill(ids[fault.number], fault.happens)
    while path is not None and process.poll() is None and not mark.exists():
        time.sleep(0.01)
    since = time.monotonic()
    said = last_words(process, LONGEST)
    took = time.monotonic() - since
    there = [each for each in ids if Path(f"/proc/{each}").exists()]
    for each in there:
        os.kill(each, signal.SIGKILL)
    wrong = [f"{len(there)} are still there"] if there else []
    wrong += [] if took < LONGEST and process.returncode else [f"it ended with {process.returncode} after {took:.0f} s"]
    wrong += [] if re.search(fault.said, said) else [f"nobody says {fault.said!r}"]
    wrong += ["it ends with a page of C++"] if re.search(r"\.(cc|h):\d+\] ", said) else []
    return [f"{each}: {said[-1500:]}" for each in wrong]


def deaths(times: int, folder: Path) -> list[str]:
    """As many faults as are asked for."""
    return deaths_of([*FAULTS][:times], folder)


def deaths_of(names: Sequence[str], folder: Path) -> list[str]:
    """Each in a run of its own, which then goes on on the same mesh: it leaves what one leaves that nothing happened to."""
    wrong = []
    for name in names:
        fault = FAULTS[name]
        (place := folder / name.replace(" ", "-")).mkdir()
        out = place / "run"
        wrong += [f"{name}: {each}" for each in suffers(fault, out)]
        wrong += [f"{name}: {each}" for each in goes_on(out, folder)]
    return wrong


def goes_on(out: Path, folder: Path) -> list[str]:
    """Resume the run, and compare it with one of as many steps that nothing happened to."""
    reached = max(int(path.name) for path in (out / "checkpoints").iterdir() if path.name.isdecimal())
    steps, whole = (reached // 20 + 2) * 20, folder / "whole"
    whole.mkdir(exist_ok=True)
    said = start(out, "--resume", f"--steps={steps}").communicate()[1]
    if not (out / f"checkpoints/{steps}").exists():
        return [f"it does not go on: {said[:3000]}"]
    start(whole / str(steps), f"--steps={steps}").communicate()
    same = left(out, steps)[:2] == left(whole / str(steps), steps)[:2]
    return [] if same else [f"step {steps} has other bits"]
